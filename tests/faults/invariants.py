"""What has to be true from the outside whenever everything is ready, read from /proc and from REST."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import psutil

from nodemanager.environment import GENERATION_MARK, NODE_MARK, RUN_MARK, SLOT_MARK, STATE_MARK
from tests.faults.cluster import Cluster


@dataclass(frozen=True)
class EngineProcess:
    pid: int
    parent: int
    slot: str
    generation: int
    run_id: str
    node: str
    argv: tuple[str, ...]


def engine_processes(root: Path) -> list[EngineProcess]:
    """Living processes with the marks of an engine of a node below `root`."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            env = process.environ()
            if process.status() == psutil.STATUS_ZOMBIE or not env.get(STATE_MARK, "").startswith(f"{root}/"):
                continue
            found.append(
                EngineProcess(
                    process.pid, process.ppid(), env[SLOT_MARK], int(env[GENERATION_MARK]), env[RUN_MARK],
                    env[NODE_MARK], tuple(process.cmdline()),
                )
            )  # fmt: skip
    return found


def shims(root: Path) -> list[str]:
    """The generation folders whose shims live."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            is_shim = any(word.endswith("nodemanager/shim.py") for word in words) and words[-1].startswith(f"{root}/")
            if is_shim and process.status() != psutil.STATUS_ZOMBIE:
                found.append(words[-1])
    return found


def check(cluster: Cluster) -> None:
    """One engine for each slot, nothing of an older generation, and a gang that agrees with itself."""
    root = cluster.d.root
    found = engine_processes(root)
    of_slot: dict[str, list[EngineProcess]] = defaultdict(list)
    for process in found:
        of_slot[process.slot].append(process)
    groups = {member["slot"]: (group, member) for group in cluster.groups() for member in group["members"]}
    assert set(of_slot) == set(groups), "an engine for every slot and for no other"
    for slot, (group, member) in groups.items():
        processes = of_slot[slot]
        assert {p.node for p in processes} == {member["node_id"]}, f"{slot} runs on one node: {processes}"
        assert {p.generation for p in processes} == {group["generation"]}, f"{slot}: nothing old is left: {processes}"
        assert {p.run_id for p in processes} == {group["run_id"]}
        pids = {p.pid for p in processes}
        tops = [p for p in processes if p.parent not in pids]
        assert [p.pid for p in tops] == [member["pid"]], f"{slot} has one engine: {tops}"
        words = tops[0].argv
        assert words[words.index("--master-addr") + 1] == member["master_addr"]
        assert words[words.index("--master-port") + 1] == str(member["master_port"])
    for group in cluster.groups():
        assert len({(m["master_addr"], m["master_port"]) for m in group["members"]}) == 1, "the gang agrees"
    assert len(shims(root)) == len(groups), f"one shim for each engine: {shims(root)}"
