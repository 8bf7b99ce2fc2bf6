"""A real controller (SQLite store, real gRPC) under thousands of node streams.

Usage: python -m bench.load PART [RUNS] [NODES]      PART: starts, heartbeats, storm, failure, status, drift

  starts      registrations/s, last registration -> last StartCmdMsg received, resident memory of each node's share
  heartbeats  over four shared connections: acknowledged/s at an offered rate, its delay and cost; the most it can do
  storm       kill -9 of a controller with all groups ready, a new one: until all nodes are back and all groups ready
  failure     one engine of a ready group dies: until all its members have their stop
  status      /v1/status and `motorctl status` with everything ready
  drift       resident memory after 10,000 reconnects of nodes, and after as many again

One load process on the other core. Nodes answer a prepare at once and start nothing.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from motor_rpc import control_pb2 as pb

from bench.controller_process import GROUP, ControllerProcess
from bench.fleet import Fleet, LoadNode
from bench.table import Figure, percentile, show

NODES = 10_000
KB, MS = 1e-3, 1e3
STOPPED = pb.ENGINE_STATE_STOPPED


@asynccontextmanager
async def fleet(
    nodes: int, shared: int = 4, instances: int = 1, timers: dict[str, float] | None = None, nnodes: int = GROUP
) -> AsyncIterator[tuple[ControllerProcess, Fleet]]:
    """A controller and nodes for it, not yet registered."""
    room_for_connections(nodes)
    with tempfile.TemporaryDirectory(prefix="motor-bench-") as folder:
        controller = ControllerProcess(Path(folder), instances, nodes // nnodes // instances, nnodes, timers)
        controller.start()
        loaded = Fleet("127.0.0.1", controller.grpc_port, nodes, shared)
        try:
            await loaded.connect()
            yield controller, loaded
        finally:
            await loaded.close()
            controller.end()


def room_for_connections(nodes: int) -> None:
    """A file descriptor for each node, here and in the controller, which inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = nodes + 1000
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))


async def register(nodes: list[LoadNode], loaded: Fleet) -> None:
    """As fast as they are answered."""
    for number, node in enumerate(nodes):
        node.register(await loaded.dial(node.number))
        if number % 100 == 0:
            await asyncio.sleep(0)  # let answers in


async def all_ready(loaded: Fleet) -> None:
    count = len(loaded.nodes)
    await register(loaded.nodes, loaded)
    await loaded.until(lambda seen: seen.started == count, f"{count} starts")
    for node in loaded.nodes:
        node.up()
    await loaded.until(lambda seen: seen.ready == count, f"{count} ready")


# -- from registration to start --------------------------------------------------------------------------------------


async def starts(runs: int, nodes: int) -> list[Figure]:
    figures = [Figure(f"{GROUP} nodes: last registration -> last StartCmdMsg", await groups_of_eight(), "ms", "p99 20")]
    for count in sorted({min(1_000, nodes), nodes}):
        rates, delays, memory = [], [], []
        for _ in range(runs):
            async with fleet(count) as (controller, loaded):
                idle, began = controller.rss(), time.perf_counter()
                await register(loaded.nodes[:-1], loaded)
                seen = await loaded.until(lambda seen, n=count: seen.registered == n - 1, "registrations")
                rates.append((count - 1) / (seen.registered_at - began))
                await asyncio.sleep(0.5)
                await register(loaded.nodes[-1:], loaded)
                seen = await loaded.until(lambda seen, n=count: seen.started == n, "starts")
                delays.append(seen.started_at - seen.registered_at)
                memory.append(KB * (controller.rss() - idle) / count)
        aim = {1_000: "0.5", 10_000: "6"}.get(count, "")
        figures += [
            Figure(f"{count} nodes: registrations", rates, "1/s", digits=0),
            Figure(f"{count} nodes: last registration -> last StartCmdMsg", delays, "s", aim, 2),
            Figure(f"{count} nodes: controller memory for each, shared connections", memory, "kB", "64"),
        ]
    return figures


async def groups_of_eight(groups: int = 200) -> list[float]:
    """One group after the other, each an instance of its own, in one deployment."""
    delays = []
    async with fleet(groups * GROUP, instances=groups) as (_, loaded):
        for first in range(0, groups * GROUP, GROUP):
            loaded.reset()
            await register(loaded.nodes[first : first + GROUP], loaded)
            seen = await loaded.until(lambda seen: seen.started == GROUP, "starts")
            delays.append(MS * (seen.started_at - seen.registered_at))
    return delays


# -- heartbeats ------------------------------------------------------------------------------------------------------

BEAT_SECONDS = 5.0
IN_FLIGHT = 64


async def heartbeats(runs: int, nodes: int) -> list[Figure]:
    figures = []
    async with fleet(nodes, timers={"node_timeout": 300.0}) as (controller, loaded):  # only the measured beats
        loaded.beating = False
        await all_ready(loaded)
        await asyncio.sleep(3.0)  # until everybody has heard that its group is ready
        for offered in (nodes * 1500 // 10_000, 5_000 * nodes // NODES):
            rates, late, cores = [], [], []
            for _ in range(runs):
                before = controller.cpu()
                rate, delays = await offer_beats(loaded, offered)
                rates.append(rate)
                late.append(MS * percentile(delays, 99))
                cores.append(100 * (controller.cpu() - before) / BEAT_SECONDS)
            figures += [
                Figure(f"heartbeats acknowledged, {offered}/s offered", rates, "1/s", digits=0),
                Figure(f"  p99 from heartbeat to acknowledgement, {offered}/s", late, "ms"),
                Figure(f"  controller's CPU (100 = one core), {offered}/s", cores, "%", digits=0),
            ]
        most, for_each_core = [], []
        for _ in range(runs):
            before = controller.cpu()
            most.append(await closed_loop(loaded))
            for_each_core.append(most[-1] * BEAT_SECONDS / (controller.cpu() - before))
        figures += [
            Figure(f"heartbeats, the most it can do ({IN_FLIGHT} in flight)", most, "1/s", "5000", 0),
            Figure("  for each core of CPU that the controller uses", for_each_core, "1/s", digits=0),
        ]
    return figures


async def offer_beats(loaded: Fleet, rate: int, seconds: float = BEAT_SECONDS) -> tuple[float, list[float]]:
    """(acknowledged in a second, delays) with beats at a steady rate, node after node."""
    loaded.reset()
    loaded.measuring = True
    began, sent, count = time.perf_counter(), 0, len(loaded.nodes)
    while (spent := time.perf_counter() - began) < seconds:
        for number in range(sent, int(spent * rate)):
            loaded.nodes[number * 7919 % count].send_beat(time.perf_counter())  # a prime: another connection each time
        sent = max(sent, int(spent * rate))
        await asyncio.sleep(0.001)
    acknowledged = loaded.seen.acks
    await loaded.until(lambda seen: seen.acks >= sent, "the last acknowledgements", 30.0)
    loaded.measuring = False
    return acknowledged / seconds, loaded.seen.delays


async def closed_loop(loaded: Fleet) -> float:
    """Beats acknowledged in a second, each acknowledgement answered by the next node's beat."""
    loaded.reset()
    nodes = loaded.nodes
    began, sent = time.perf_counter(), 0
    while time.perf_counter() - began < BEAT_SECONDS:
        for _ in range(IN_FLIGHT - (sent - loaded.seen.acks)):
            nodes[sent * 7919 % len(nodes)].send_beat(time.perf_counter())
            sent += 1
        await loaded.until(lambda seen, n=sent: n - seen.acks < IN_FLIGHT, "acknowledgements")
    rate = loaded.seen.acks / (time.perf_counter() - began)
    await loaded.until(lambda seen: seen.acks >= sent, "the last acknowledgements")
    return rate


# -- a controller that is started again ------------------------------------------------------------------------------


async def storm(runs: int, nodes: int) -> list[Figure]:
    """Nodes have a connection each and redial as the node manager does: at once, full jitter, doubling."""
    back, ready, again, busy, memory = [], [], [], [], []
    async with fleet(nodes, shared=0) as (controller, loaded):
        idle = controller.rss()
        await all_ready(loaded)
        loaded.reconnecting = True
        for _ in range(runs):
            loaded.reset()
            controller.end(signal.SIGKILL)
            await loaded.until(lambda seen: seen.lost == nodes, "all streams to break")
            loaded.reset()
            began = time.perf_counter()
            await asyncio.to_thread(controller.start)
            await loaded.until(lambda seen: seen.registered - seen.lost >= nodes, "all nodes to be back", 180.0)
            back.append(loaded.seen.registered_at - began)
            await until_async(lambda: is_ready(controller), "all groups to be ready")
            ready.append(time.perf_counter() - began)
            again.append(float(loaded.seen.lost + loaded.seen.started + loaded.seen.stopped))
            busy.append(float(loaded.seen.refused))
            memory.append(KB * (controller.rss() - idle) / nodes)
            assert len(await asyncio.to_thread(connected, controller)) == nodes, "a node is missing"
        loaded.reconnecting = False
    return [
        Figure(f"storm: {nodes} nodes back after kill -9 and a new start", back, "s", "60", 1),
        Figure("  until all groups are ready again", ready, "s"),
        Figure("  streams lost again, engines started or stopped", again, "", "0", 0),
        Figure("  registrations told to come again later", busy, "", digits=0),
        Figure("  controller memory for each node, a connection each", memory, "kB", "64"),
    ]


def is_ready(controller: ControllerProcess) -> bool:
    return bool(controller.get("/v1/status?limit=1")["ready"])


def connected(controller: ControllerProcess) -> list[str]:
    return [node["node_id"] for node in controller.get("/v1/nodes") if node["state"] == "assigned"]


async def until_async(done: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    end = time.perf_counter() + seconds
    while not await asyncio.to_thread(done):
        assert time.perf_counter() < end, f"waited {seconds:g} s for {what}"
        await asyncio.sleep(0.1)


# -- a group that fails ----------------------------------------------------------------------------------------------


async def failure(runs: int, nodes: int) -> list[Figure]:
    delays = []
    async with fleet(nodes) as (_, loaded):
        await all_ready(loaded)
        await asyncio.sleep(3.0)
        masters = [node for node in loaded.nodes if node.held is not None and node.held.api_port]
        for node in random.sample(masters, min(max(runs, 100), len(masters))):
            loaded.reset()
            began = time.perf_counter()
            node.fail()
            await loaded.until(lambda seen: seen.stopped == GROUP, "the stops", 30.0)
            delays.append(MS * (loaded.seen.stopped_at - began))
    return [Figure(f"{nodes} nodes: failure reported -> all {GROUP} stops received", delays, "ms")]


# -- looking at it ---------------------------------------------------------------------------------------------------


async def status(runs: int, nodes: int) -> list[Figure]:
    async with fleet(nodes) as (controller, loaded):
        await all_ready(loaded)
        await until_async(lambda: is_ready(controller), "all groups to be ready")
        loaded.measuring = True
        command = [str(Path(sys.executable).with_name("motorctl")), "status", "--controller", controller.url]
        whole = [await timed(lambda: run(*command)) for _ in range(runs)]
        full, sizes = [], []
        for _ in range(runs):
            full.append(await timed(lambda: sizes.append(float(len(controller.get_text("/v1/status"))))))
        brief = [await timed(lambda: controller.get_text("/v1/status?limit=200")) for _ in range(runs)]
        size = float(len(await asyncio.to_thread(controller.get_text, "/v1/status?limit=200")))
        late = MS * max(loaded.seen.delays, default=math.nan)
    return [
        Figure(f"{nodes} nodes: `motorctl status`, the whole command", whole, "ms", "400", 0),
        Figure("  its answer, as it asks for it", brief, "ms"),
        Figure("  size of that", [size / 1e3], "kB"),
        Figure("  GET /v1/status, every member and node", full, "ms", digits=0),
        Figure("  size of that", [value / 1e6 for value in sizes], "MB"),
        Figure("  longest wait of a heartbeat for its acknowledgement meanwhile", [late], "ms", digits=0),
    ]


async def timed(what: Callable[[], object]) -> float:
    """Milliseconds, beside the heartbeats of this process."""
    began = time.perf_counter()
    await asyncio.to_thread(what)
    return MS * (time.perf_counter() - began)


def run(*command: str) -> None:
    import subprocess

    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "MOTOR_CONTROLLER": ""})
    assert done.returncode == 0, done.stdout + done.stderr


# -- memory over time ------------------------------------------------------------------------------------------------


async def drift(runs: int, reconnects: int, nodes: int = 1_000) -> list[Figure]:
    """Before the first look each node has reconnected a few times, and the story of 10,000 decisions is full."""
    first, second = [], []
    for _ in range(runs):
        async with fleet(nodes, shared=0) as (controller, loaded):
            await all_ready(loaded)
            for _ in range(4):
                await reconnect_all(loaded)
            for drifts in (first, second):
                before = controller.rss()
                for _ in range(reconnects // nodes):
                    await reconnect_all(loaded)
                drifts.append(100 * (controller.rss() - before) / before)
    return [
        Figure(f"growth of memory over {reconnects} reconnects of {nodes} nodes", first, "%", "5"),
        Figure(f"  over the next {reconnects}: what is lost would be lost here, too", second, "%"),
    ]


async def reconnect_all(loaded: Fleet) -> None:
    loaded.reset()
    for number, node in enumerate(loaded.nodes):
        node.leave()
        node.register(await loaded.dial(node.number))
        if number % 20 == 0:
            await asyncio.sleep(0)
    await loaded.until(lambda seen: seen.registered == len(loaded.nodes), "all to be back")


PARTS: dict[str, Callable[[int, int], Awaitable[list[Figure]]]] = {
    "starts": starts,
    "heartbeats": heartbeats,
    "storm": storm,
    "failure": failure,
    "status": status,
    "drift": drift,
}


def main(part: str, runs: int = 5, nodes: int = NODES) -> None:
    async def measure() -> list[Figure]:
        return await PARTS[part](runs, nodes)

    show(*asyncio.run(measure()))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
