"""The status table: what runs where, and for everything that is not up, why."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

NAMES_SHOWN = 3  # of the instances that share an engine profile

STYLES = {
    "ready": "green", "assigned": "green", "spare": "cyan",
    "failed": "bold red", "rejected": "red", "vacant": "red", "lost": "red", "unreachable": "bold yellow",
}  # fmt: skip


def status_view(status: dict[str, Any]) -> Group:
    """Instances with their groups and members, nodes, and the problems in sentences."""
    head = Text(f"deployment {status['deployment_id']}  epoch {status['epoch']}  ")
    head.append(status["summary"], "bold green" if status["ready"] else "bold yellow")
    parts: list[Any] = [head]
    if status.get("stale_since"):
        parts.append(
            Text(
                f"STALE since {status['stale_since']}: no controller leads ({status['stale_reason']}). "
                "This is what the last leader saw; engines keep running, nothing is changed",
                "bold red",
            )
        )
    if status.get("store_error"):
        parts.append(Text(f"the store cannot be written: {status['store_error']}", "bold red"))
    parts.append(_members(status))
    parts += _profiles(status)
    parts.append(_nodes(status))
    parts += _omitted(status)
    parts += [Text(f"! {problem}", "yellow") for problem in status["problems"]]
    for instance in status["instances"]:
        for group in instance["groups"]:
            if group["state"] == "failed" and group["last_failure"]:
                parts.append(_evidence(group))
    return Group(*parts)


def _members(status: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("SLOT", "NODE", "ADDRESS", "RANK", "STATE", "STAGE / HEALTH", "GEN", "API / MASTER"):
        table.add_column(column, overflow="fold")
    for instance in status["instances"]:
        title = f"{instance['name']}  {instance['groups_total']} x {instance['nnodes']} nodes  {instance['model']}"
        table.add_row(Text(title, "bold"), "", "", "", _styled(instance["state"]))
        for group in instance["groups"]:
            for member in group["members"]:
                table.add_row(*_member_row(group, member))
    return table


def _member_row(group: dict[str, Any], member: dict[str, Any]) -> tuple[Any, ...]:
    kind = "headless" if member["headless"] else "master"
    stage = f"{member['stage']} {member['stage_seconds']:.0f} s" if member["stage"] else ""
    if member["state"] == "ready":
        stage = member["warning"] or _health(member)
    if member["state"] == "vacant":
        stage = f"since {member['vacant_seconds']:.0f} s"
    elif not member["connected"]:
        stage = ("out of sight; " + stage) if stage else "out of sight"
    where = ""
    if group["generation"] and member["master_addr"]:
        api = f"http://{_host(member['address'])}:{member['api_port']}" if member["api_port"] else ""
        where = api or f"{_host(member['master_addr'])}:{member['master_port']}"
    return (
        "  " + member["slot"], member["node_id"] or "-", member["address"], f"{member['node_rank']} {kind}",
        _styled(member["state"]), stage, str(group["generation"] or ""), where,
    )  # fmt: skip


def _health(member: dict[str, Any]) -> str:
    if member["headless"]:
        return f"devices {member['devices_activity'].split(' (')[0]}" if member["devices_activity"] else ""
    off = member["canary"] == "off" and member["canary_detail"]
    return f"canary {member['canary']}" + (f": {member['canary_detail']}" if off else "")


def _profiles(status: dict[str, Any]) -> list[Text]:
    """A line for each engine profile in use: why this one, and which instances have it."""
    users: dict[tuple[str, str], list[str]] = {}
    for instance in status["instances"]:
        choice = (instance["engine_profile"], instance["engine_profile_reason"])
        users.setdefault(choice, []).append(instance["name"])
    lines = []
    for (profile, reason), names in users.items():
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        lines.append(Text(f"engine profile {profile} ({reason}): {', '.join(names[:NAMES_SHOWN])}{more}", "dim"))
    return lines


def _nodes(status: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("NODE", "ADDRESS", "STATE", "SINCE", "DEVICES", "REASON"):
        table.add_column(column, overflow="fold")
    for node in status["nodes"]:
        table.add_row(
            node["node_id"], node["address"], _styled(node["state"]), f"{node['since_seconds']:.0f} s",
            f"{node['devices_leased']}/{node['devices_total']} {node['device_kind']}", node["reason"],
        )  # fmt: skip
    if not status["nodes"] and not status["node_counts"]:
        table.add_row(Text("no node has registered", "yellow"))
    return table


def _omitted(status: dict[str, Any]) -> list[Text]:
    left_out = {name: count for name, count in status.get("omitted", {}).items() if count}
    if not left_out:
        return []
    counts = ", ".join(f"{count} {state}" for state, count in sorted(status["node_counts"].items()))
    what = ", ".join(f"{count} {name}" for name, count in left_out.items())
    return [Text(f"nodes: {counts}"), Text(f"not shown: {what}; --all shows them", "dim")]


def _evidence(group: dict[str, Any]) -> Text:
    failure = group["last_failure"]
    text = Text(f"\n{group['scope']} gave up. First failure: {failure['slot']} on node {failure['node_id']}: ", "red")
    text.append(failure["reason"])
    for line in failure["last_log_lines"][-15:]:
        text.append(f"\n  | {line}", "dim")
    return text


def _styled(state: str) -> Text:
    return Text(state, STYLES.get(state.split()[0], "yellow"))


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def print_status(status: dict[str, Any], console: Console | None = None) -> None:
    (console or Console(soft_wrap=False)).print(status_view(status))
