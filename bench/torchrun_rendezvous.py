"""PyTorch's elastic rendezvous (c10d backend, as `torchrun --rdzv-backend=c10d`): N agents agree on who is in and on
their ranks. Run by an interpreter that has torch; uses nothing of Motor.

Usage: PYTHON bench/torchrun_rendezvous.py AGENTS RUNS forked|processes [LOSSES]

Prints one JSON object: for each run the seconds from the last agent's call to the last agent's rank, and, LOSSES times,
the seconds from SIGKILL of one agent to the last other agent's view without it; the gang is one smaller each time. An
agent is the handler that torchrun uses for `next_rendezvous`; its start, imports and workers are not counted.
`processes`: each agent imports torch in a process of its own; `forked`: they are forked after the import.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

POLL_SECONDS = 0.01  # how often an agent's own view is looked at, once it is waited for


def agent(commands: Connection, agents: int, port: int, first: bool) -> None:
    """Obeys ("prepare", run), ("join",) and ("watch", agents); answers with times of the monotonic clock."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

    handler: Any = None
    commands.send("up")
    while True:
        command, *given = commands.recv()
        if command == "prepare":
            parameters = RendezvousParameters(
                backend="c10d", endpoint=f"127.0.0.1:{port}", run_id=given[0], min_nodes=agents, max_nodes=agents,
                local_addr="127.0.0.1", is_host=first,
            )  # fmt: skip
            backend, store = create_backend(parameters)
            handler = create_handler(store, backend, parameters)
            commands.send("prepared")
        elif command == "join":
            called = time.monotonic()
            info = handler.next_rendezvous()
            commands.send((called, time.monotonic(), info.rank))
        elif command == "watch":
            # what the handler's own keep-alive thread brings, every 5 s
            while len(handler._state_holder.state.participants) >= given[0]:
                time.sleep(POLL_SECONDS)
            commands.send(time.monotonic())


def tell(agents: list[Connection], *command: object) -> list[Any]:
    """Give all the same command; their answers."""
    for one in agents:
        one.send(command)
    return [one.recv() for one in agents]


def start(count: int, how: str) -> tuple[list[Any], list[Connection]]:
    context = multiprocessing.get_context("fork" if how == "forked" else "spawn")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes, ends = [], []
    for number in range(count):
        mine, theirs = context.Pipe()
        process = context.Process(target=agent, args=(theirs, count, port, number == 0), daemon=True)
        process.start()
        processes.append(process)
        ends.append(mine)
    for end in ends:
        end.recv()
    return processes, ends


def main(count: int, runs: int, how: str, losses: int) -> None:
    if how == "forked":
        importlib.import_module("torch.distributed.elastic.rendezvous.dynamic_rendezvous")
    joined: list[float] = []
    known: list[float] = []
    processes, ends = start(count, how)
    try:
        for run in range(runs):
            tell(ends[:1], "prepare", f"run-{run}")  # the store's host
            tell(ends[1:], "prepare", f"run-{run}")
            answers = tell(ends, "join")
            assert sorted(rank for _, _, rank in answers) == list(range(count)), answers
            joined.append(max(done for _, done, _ in answers) - max(called for called, _, _ in answers))
        for left in range(count - 1, count - 1 - losses, -1):
            time.sleep(6.0)  # until the keep-alives of the round before have gone through
            killed = time.monotonic()
            os.kill(processes[left].pid, signal.SIGKILL)  # the last one; the first one keeps the store
            known.append(max(tell(ends[:left], "watch", left + 1)) - killed)
    finally:
        for process in processes:
            process.kill()
            process.join()
    print(json.dumps({"joined": joined, "known": known}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 0)
