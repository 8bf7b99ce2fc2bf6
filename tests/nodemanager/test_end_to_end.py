"""Two managers as processes, one engine over both: from registration to a stopped engine."""

from __future__ import annotations

from pathlib import Path

from motor_rpc import control_pb2 as pb

from tests.nodemanager import wire
from tests.nodemanager.places import Node, free_port, get, until


async def test_two_nodes_from_registration_to_stop(place: Path) -> None:
    async with wire.serve(wire.Controller()) as controller:
        nodes = [Node(place / f"n{rank}", controller.port) for rank in range(2)]
        sessions = []
        for number, node in enumerate(nodes):
            node.start()
            sessions.append(await controller.session(number))
        assert [s.register.node_id for s in sessions] == ["n0", "n1"]
        assert sessions[0].register.engines[0].version == "0.32.0"
        assert list(sessions[0].register.devices) == ["0", "1"]

        master, api = free_port(), free_port()
        for rank, session in enumerate(sessions):
            message = wire.prepare(wire.slot(rank), "tiny", master, 2, devices=[str(rank)])
            controller.send(session, prepare=message)
        reports = [await session.prepared() for session in sessions]
        assert all(report.ok for report in reports), reports
        assert reports[0].model_digest == reports[1].model_digest != ""
        assert [item.name for item in reports[0].items] == [
            "address", "interface", "devices", "environment", "clock", "left_overs", "engine", "toolkit", "model",
            "ports", "device_files", "shm", "disk", "device_memory", "memory", "memlock", "open_files", "driver",
            "master",
        ]  # fmt: skip

        for rank, session in enumerate(sessions):
            message = wire.start(wire.slot(rank), "tiny", master, api, 2, devices=[str(rank)])
            controller.send(session, start=message)
        assert (await sessions[0].state("starting")).generation == 1
        await sessions[0].state("ready")
        up = await sessions[1].until(lambda m: m.HasField("slot_report") and m.slot_report.workers_up)
        assert up.slot_report.state == pb.ENGINE_STATE_LOADING  # the master's word is missing
        assert up.slot_report.workers_seen == 1
        controller.send(sessions[1], group_ready=pb.GroupReadyMsg(slot=wire.slot(1), generation=1, ready=True))
        ready = await sessions[1].state("ready")
        assert ready.pid > 0 and ready.run_id == "run-1" and ready.epoch == 1
        assert nodes[1].local_status()["status"] == "normal"
        assert nodes[0].local_status()["slots"][0]["state"] == "ready"
        assert get(f"http://127.0.0.1:{api}/v1/models")[0] == 200

        for rank, session in enumerate(sessions):
            stop = pb.StopCmdMsg(slot=wire.slot(rank), generation=1, mode="planned", reason="the test is over")
            controller.send(session, stop=stop)
        for rank, session in enumerate(sessions):
            await session.state("stopping")
            stopped = await session.state("stopped")
            assert stopped.exit_code == 0, stopped
            controller.send(session, forget=pb.ForgetMsg(slot=wire.slot(rank), generation=1))
        for node in nodes:
            await until(lambda node=node: not node.folder(int(node.root.name[1])).exists())
            assert node.end() == 0
