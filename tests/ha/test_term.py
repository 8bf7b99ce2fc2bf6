"""The end of a term, seen from within one process: what a leader had ready to say when it fell asleep."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
from motor_rpc import control_pb2 as pb
from motor_rpc import control_pb2_grpc

from controller.api.node_door import NodeDoor
from controller.config.advertise_rules import Advertised
from controller.config.plan import LoadedDeployment, load_deployment
from controller.leadership import Leadership
from controller.store.etcd import EtcdStore
from controller.store.etcd_settings import EtcdSettings
from controller.store.interface import Leader, Store
from controller.store.memory import MemoryStore
from controller.term import Term
from controller.terms import run_terms
from nodemanager.link import Link
from tests.cluster.deployment import Deployment, engine_section
from tests.nodemanager.places import until
from tests.store.etcd_server import EtcdCluster

LEASE = 2


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(tmp_path_factory.mktemp("etcd"), size=1)
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def deployment(tmp_path: Path) -> LoadedDeployment:
    """Its nodes are patient: in this process they sleep as long as the controller, and may not end the stream first."""
    timers = {"timers": {"heartbeat_interval": 2.0, "node_timeout": 30.0}}
    return load_deployment(Deployment(tmp_path, {"motor_engine_union_config": engine_section(nnodes=1)}, timers).file)


class Node:
    """What stands behind a link."""

    def __init__(self) -> None:
        self.commands: list[pb.ControllerMessage] = []

    async def register(self) -> pb.RegisterMsg:
        return pb.RegisterMsg(
            protocol=1, node_id="n1", incarnation=1, boot_id="b", deployment_id="default", address="127.0.1.1",
            device_kind="cpu", devices=["0"],
        )  # fmt: skip

    async def handle(self, message: pb.ControllerMessage) -> None:
        self.commands.append(message)


def shared_store(etcd: EtcdCluster, prefix: str, name: str = "c1", lease: int = LEASE) -> EtcdStore:
    settings = EtcdSettings(tuple(etcd.endpoints), prefix=prefix, lease_seconds=lease, request_seconds=0.5)
    return EtcdStore(settings, "default", Leader(name, f"{name}:1028", f"http://{name}:1026", 0))


@contextlib.asynccontextmanager
async def controller(deployment: LoadedDeployment, store: Store) -> AsyncIterator[tuple[Leadership, int]]:
    """The doors and terms of a controller within this process; its leadership and the port of its streams."""
    leadership, stop = Leadership(Advertised("c1:1028", "http://c1:1026")), asyncio.Event()
    server = grpc.aio.server()
    control_pb2_grpc.add_ControlServicer_to_server(NodeDoor(leadership), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    task = asyncio.create_task(run_terms(leadership, lambda: Term(deployment, store), stop))
    try:
        yield leadership, port
    finally:
        stop.set()
        await asyncio.wait_for(task, 10.0)
        await server.stop(0.1)


@contextlib.asynccontextmanager
async def linked(node: Node, *ports: int) -> AsyncIterator[Link]:
    link = Link([("127.0.0.1", port) for port in ports], node.register, node.handle, (0.05, 0.2))
    task = asyncio.create_task(link.run())
    try:
        yield link
    finally:
        task.cancel()
        await asyncio.wait({task}, timeout=10.0)


def number(message: pb.ControllerMessage) -> str:
    return message.log_cancel.request_id


async def test_what_was_queued_before_a_sleep_never_leaves(etcd: EtcdCluster, deployment: LoadedDeployment) -> None:
    node = Node()
    async with controller(deployment, shared_store(etcd, "/sleep")) as (who, port), linked(node, port) as link:
        await until(lambda: who.term is not None and "n1" in who.term.service.node_sessions)
        first = who.term
        assert first is not None
        assert first.service.send_to_node("n1", log_cancel=pb.LogCancel(request_id="awake"))
        await until(lambda: "awake" in map(number, node.commands))
        first.service.send_to_node("n1", log_cancel=pb.LogCancel(request_id="asleep"))
        time.sleep(LEASE + 0.5)  # noqa: ASYNC251 - the whole process stands still, as under SIGSTOP
        await until(lambda: who.term not in (None, first), 10.0, "the next term")
        await until(lambda: link.state.state == "connected", 10.0)
        assert "asleep" not in map(number, node.commands)
        assert first.service.over and who.term is not None
        assert who.term.service.state.epoch == first.service.state.epoch + 1


async def test_a_term_that_is_over_decides_nothing(etcd: EtcdCluster, deployment: LoadedDeployment) -> None:
    async with controller(deployment, shared_store(etcd, "/over")) as (who, _):
        await until(lambda: who.term is not None)
        term = who.term
        assert term is not None
        term.service.silence("a test")
        lines = term.service.state.story_count
        answer = term.service.order("pause", "", "")
        assert not answer.ok and "leads no more: a test" in answer.sentence
        assert term.service.state.story_count == lines
        epoch = term.service.state.epoch
        await term.service.raise_epoch(epoch + 5)  # a node's word that comes late; the store may serve the next term
        assert term.service.state.epoch == epoch


async def test_a_node_waits_at_a_standby_until_somebody_leads(etcd: EtcdCluster, deployment: LoadedDeployment) -> None:
    """One dial, and it is in: no round of retries lies between the election and the registration."""
    other = shared_store(etcd, "/wait", "c2")
    await other.open(lambda leader: None)
    node = Node()
    async with controller(deployment, shared_store(etcd, "/wait")) as (who, port):
        await until(lambda: who.leader is not None and who.leader.controller_id == "c2")
        assert "standby, leader http://c2:1026" in who.describe()
        link = Link([("127.0.0.1", port)], node.register, node.handle, (60.0, 60.0))
        link._route.tried = ("c2", 1028)  # the node has just lost the old leader
        task = asyncio.create_task(link.run())
        await asyncio.sleep(0.3)
        assert link.state.state == "connecting" and not link.state.detail, "it waits and is not refused"
        await other.close()
        await until(lambda: link.state.state == "connected", 5.0)
        task.cancel()
        await asyncio.wait({task}, timeout=10.0)


async def test_a_leader_that_is_this_very_controllers_earlier_run_is_nobody() -> None:
    who = Leadership(Advertised("c1:1028", "http://c1:1026"))
    who.told(Leader("older", "c1:1028", "http://c1:1026", 3))
    assert who.leader is None and "earlier run" in who.describe()
    who.told(Leader("x", "c2:1028", "http://c2:1026", 4))
    assert who.leader is not None
    who.told(None)
    assert who.leader is None and "no leader since" in who.describe()


async def test_a_store_of_ones_own_has_no_standby(deployment: LoadedDeployment) -> None:
    async with controller(deployment, MemoryStore()) as (who, _):
        await until(lambda: who.term is not None)
        assert who.term is not None
        answer = who.term.service.step_down("")
        assert not answer.ok and "there is no standby to take over" in answer.sentence
        assert who.term.service.may_order()


async def test_a_controller_that_was_held_up_takes_no_node_for_silent(tmp_path: Path) -> None:
    """While it did not run it could not read: what nodes have said meanwhile is still in the sockets."""
    timers = {"heartbeat_interval": 0.5, "node_timeout": 1.5}
    file = Deployment(tmp_path, {"motor_engine_union_config": engine_section(nnodes=1)}, {"timers": timers}).file
    async with controller(load_deployment(file), MemoryStore()) as (leadership, port):
        await until(lambda: leadership.term is not None)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = control_pb2_grpc.ControlStub(channel).Session()
            await call.write(pb.NodeMessage(register=await Node().register()))
            assert (await call.read()).WhichOneof("body") == "registered"
            asyncio.get_running_loop().call_soon(time.sleep, timers["node_timeout"] + 1.5)  # nothing runs meanwhile
            await asyncio.sleep(0)
            await call.write(pb.NodeMessage(heartbeat=pb.HeartbeatMsg(sequence=1)))
            heard = [await asyncio.wait_for(call.read(), 5) for _ in range(2)]
            assert grpc.aio.EOF not in heard, "its stream was ended"
            assert "heartbeat_ack" in [message.WhichOneof("body") for message in heard]
            while await asyncio.wait_for(call.read(), 10) is not grpc.aio.EOF:
                pass  # and one that says nothing more is silent after all
