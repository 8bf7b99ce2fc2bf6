"""How far each node is, as the controller tells it: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from demo.cache import print_progress
from demo.namespaces import NodePlace

_STYLES = {"ready": "green", "loading": "yellow", "failed": "bold red", "rejected": "bold red"}


@dataclass
class NodeLine:
    """What is shown of one node. `stage` is the engine's own, with the seconds it has been in it."""

    name: str
    address: str
    rank: str = ""
    state: str = "starting its manager"
    stage: str = ""
    stage_seconds: float = 0.0


@dataclass
class Progress:
    """The lines of all nodes, brought up to date by the controller's answers."""

    lines: dict[str, NodeLine]
    started: float = field(default_factory=time.monotonic)

    @staticmethod
    def of(nodes: Sequence[NodePlace]) -> Progress:
        return Progress({node.name: NodeLine(node.name, node.address) for node in nodes})

    def take(self, events: Sequence[dict[str, Any]], status: dict[str, Any]) -> list[NodeLine]:
        """Take in what happened and what is; returns a line for each change, in order.

        Events come first: the states before the engine's start are often shorter than the time between two
        answers.
        """
        changed: list[NodeLine] = []
        groups = [group for instance in status["instances"] for group in instance["groups"]]
        members = {member["node_id"]: (group, member) for group in groups for member in group["members"]}
        holders = {member["slot"]: name for name, (_, member) in members.items()}
        for name, (_, member) in members.items():
            if name in self.lines:
                self.lines[name].rank = f"rank {member['node_rank']}, {'headless' if member['headless'] else 'master'}"
        for event in events:
            for name, state in _told_by(event, holders):
                self._change(name, state, "", 0.0, changed)
        for node in status["nodes"]:
            name = node["node_id"]
            if name not in members:
                self._change(name, node["state"], node["reason"], node["since_seconds"], changed)
                continue
            group, member = members[name]
            if group["state"] in ("assembling", "storing", "preparing"):
                continue  # shown by events
            if group["state"] not in ("starting", "ready"):
                failed = (group["last_failure"] or {}).get("slot") == member["slot"]
                self._change(name, group["state"], group["last_failure"]["reason"] if failed else "", 0.0, changed)
            elif member["state"] == "starting":
                self._change(name, "started", "", 0.0, changed)
            else:
                reason = member["reason"].partition(": ")[2] or member["reason"] or member["stage"]
                stage = "" if member["state"] == "ready" else reason
                self._change(name, member["state"], stage, member["stage_seconds"], changed)
        return changed

    def _change(self, name: str, state: str, stage: str, seconds: float, changed: list[NodeLine]) -> None:
        line = self.lines.get(name)
        if line is None:
            return
        different = (line.state, line.stage) != (state, stage)
        line.state, line.stage, line.stage_seconds = state, stage, seconds
        if different:
            changed.append(NodeLine(line.name, line.address, line.rank, state, stage, seconds))


def _told_by(event: dict[str, Any], holders: dict[str, str]) -> list[tuple[str, str]]:
    """(node, state) for an event that puts nodes into another state."""
    code, subject = event["code"], event["subject"]
    if code == "registered":
        return [(subject.removeprefix("node "), "registered")]
    if code == "prepared" and subject in holders:
        return [(holders[subject], "prepared")]
    if code == "started":
        return [(name, "started") for slot, name in holders.items() if slot.startswith(subject)]
    return []


class Display(Protocol):
    """Shows progress somewhere."""

    def update(self, progress: Progress, changed: Sequence[NodeLine]) -> None: ...


class Lines:
    """A line for each change."""

    def update(self, progress: Progress, changed: Sequence[NodeLine]) -> None:
        for line in changed:
            print_progress(
                f"{time.monotonic() - progress.started:6.1f} s  {line.name}  {line.rank:16}  {line.state:10}"
                f" {line.stage}".rstrip()
            )


class Table:
    """A table that is drawn again in place."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self.live = Live(console=Console(stderr=True), refresh_per_second=4)

    def update(self, progress: Progress, changed: Sequence[NodeLine]) -> None:
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in ("NODE", "ADDRESS", "RANK", "STATE", "STAGE", "FOR"):
            table.add_column(column)
        for line in progress.lines.values():
            seconds = f"{line.stage_seconds:.0f} s" if line.stage else ""
            state = Text(line.state, _STYLES.get(line.state, ""))
            table.add_row(line.name, line.address, line.rank, state, line.stage, seconds)
        table.caption = f"{time.monotonic() - progress.started:.0f} s since the start"
        self.live.update(table)


@contextlib.contextmanager
def display() -> Iterator[Display]:
    """The display that fits where standard error goes."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    table = Table()
    with table.live:
        yield table
