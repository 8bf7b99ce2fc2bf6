"""Engine processes, one for each node -> one deploy.json: an engine section for each role.

What Motor computes is dropped and said; everything else has to be equal on all nodes of a role, as the engines demand
(a difference shows as a deadlock there, vllm #44718).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.config.plan import INSTANCE_KEYS
from controller.config.rules import DEVICE_KEYS, NODE_KEYS
from controller.config.vocabulary import ENGINE_SECTIONS
from engine_launch.command import WILDCARD_HOSTS
from engine_launch.flags import to_json
from engine_launch.kv_connectors import KV_PORT
from engine_launch.model import ParallelShape, Role
from engine_launch.profile import EngineProfile, PortKind
from engine_launch.profiles import ProfileChoice
from engine_launch.reserved import MASTER_ONLY
from engine_launch.translation import choose_translation, engine_shape
from engine_launch.words import Given
from motorctl.convert_env import merged_env
from motorctl.convert_nodes import SET_IT, Node
from motorctl.convert_read import Report

KV = "kv-transfer-config"
LOCAL = "data-parallel-size-local"
_MASTER_PORT = 29501  # where vLLM's nodes meet by default: vLLM 0.32 engine/arg_utils.py:1143-1270

# Not reserved for their danger, as --config or --uds are, but because Motor knows them.
_COMPUTED = frozenset(
    {
        "node-rank",
        "master-addr",
        "headless",
        "data-parallel-rank",
        "data-parallel-start-rank",
        "data-parallel-address",
        "data-parallel-external-lb",
        "data-parallel-hybrid-lb",
        "data-parallel-multi-port-external-lb",
    }
)
_EXTERNAL = frozenset(name for name in _COMPUTED if name.endswith("-lb")) | {"data-parallel-rank"}


def deploy_data(
    nodes: Sequence[Node],
    engine_type: str,
    pinned: str | None,
    choice: ProfileChoice,
    role: Role | None,
    report: Report,
) -> dict[str, Any]:
    """The content of deploy.json. What hinders it is in the report as an error."""
    by_role: dict[Role, list[Node]] = {}
    for node in nodes:
        by_role.setdefault(role or node.role, []).append(node)
    if role is None and (unions := by_role.get(Role.UNION)):
        report.note(unions[0].file, unions[0].line, "role union, since no kv_role says another; --role does")
    deploy: dict[str, int] = {}
    sections: dict[str, Any] = {}
    for section, name in ENGINE_SECTIONS.items():
        if group := by_role.get(Role(name)):
            merge = _Merge(group, Role(name), choice.profile, report)
            content: dict[str, Any] = {"engine_type": engine_type}
            if pinned:
                content["engine_profile"] = pinned
            sections[section] = content | merge.section()
            deploy |= merge.deploy()
    return {"motor_deploy_config": deploy, **sections}


@dataclass
class _Merge:
    """All nodes of one role."""

    nodes: Sequence[Node]
    role: Role
    profile: EngineProfile
    report: Report
    config: dict[str, Any] = field(default_factory=dict)
    translation: str = "auto"
    shape: ParallelShape = field(default_factory=ParallelShape)

    def section(self) -> dict[str, Any]:
        """engine_config and what goes beside it."""
        self._models()
        self._options()
        self._sizes()
        extra = self._extra_args()
        env = merged_env(self.nodes, self.profile, self.report, self._differ)
        result: dict[str, Any] = {}
        if self.translation != "auto":
            result["dp_translation"] = self.translation
        result["engine_config"] = self.config
        if extra:
            result["extra_args"] = extra
        if env:
            result["env"] = env
        return result

    def deploy(self) -> dict[str, int]:
        """Instances, nodes of each, and devices of a node."""
        shape = self.shape
        found = {INSTANCE_KEYS[self.role]: self._instances(), NODE_KEYS[self.role]: shape.dp * shape.nnodes}
        if shape.group_world % shape.nnodes == 0:
            found[DEVICE_KEYS[self.role]] = shape.workers_per_node
        return found

    def _models(self) -> None:
        self.config["model"] = self.nodes[0].model
        for node in self.nodes[1:]:
            if node.model != self.nodes[0].model:
                self._differ(node, node.line, "the model", node.model, self.nodes[0].model)

    def _options(self) -> None:
        ports = self.profile.form.port_options
        dropped: dict[str, Given] = {}
        for name in dict.fromkeys(name for node in self.nodes for name in node.read.options):
            holders = [(node, given) for node in self.nodes if (given := node.given(name)) is not None]
            if name == "model":
                continue
            if name in _COMPUTED:
                dropped |= {name: holders[0][1]}
            elif name in self.profile.form.reserved:
                for node, given in holders:
                    self.report.note(
                        node.file,
                        node.line_of(given),
                        f"{given.spelled} is left out: {self.profile.form.reserved[name]}",
                    )
            elif name == "host":
                self._host(holders)
            elif name == ports[PortKind.API]:
                self._of_masters(name, holders, self._first)
            elif name in MASTER_ONLY:
                self._of_masters(name, holders, self._same)
            else:
                self._same(name, holders)
        if dropped:
            names = ", ".join(given.spelled for given in dropped.values())
            self.report.note(self.nodes[0].file, self.nodes[0].line, f"left out, since Motor computes it: {names}")

    def _host(self, holders: Sequence[tuple[Node, Given]]) -> None:
        for node, given in holders:
            if node.headless:
                self._of_headless(node, given)
                continue
            host = node.value("host")
            if host in WILDCARD_HOSTS:
                self.config["host"] = host
            else:
                text = f"{given.spelled} is left out: every master listens on its own data address"
                self.report.note(node.file, node.line_of(given), text)

    def _of_masters(
        self,
        name: str,
        holders: Sequence[tuple[Node, Given]],
        keep: Callable[[str, Sequence[tuple[Node, Given]]], None],
    ) -> None:
        """Options that a headless process does without."""
        masters = [(node, given) for node, given in holders if not node.headless]
        for node, given in holders:
            if node.headless:
                self._of_headless(node, given)
        if masters:
            keep(name, masters)

    def _of_headless(self, node: Node, given: Given) -> None:
        self.report.note(node.file, node.line_of(given), f"{given.spelled} of a headless process is left out")

    def _first(self, name: str, holders: Sequence[tuple[Node, Given]]) -> None:
        """The first port of a range: each master takes one of it."""
        known = [given for node, given in holders if not node.unknown(given.at)]
        for node, given in holders:
            if why := node.unknown(given.at):
                text = f"{given.spelled} is left out, since Motor picks a port: {why}"
                self.report.note(node.file, node.line_of(given), text)
            elif given.value != known[0].value:
                text = f"{given.spelled} {given.value} is left out: masters on one host get ports in a row"
                self.report.note(node.file, node.line_of(given), text)
        if known:
            self.config[name] = known[0].value

    def _same(self, name: str, holders: Sequence[tuple[Node, Given]]) -> None:
        """Keeps an option that all nodes have alike."""
        for node, given in holders:
            why = node.unknown(given.at)
            if why and not (name == KV and self._only_id_unknown(given)):
                got = node.engine.words[given.at[-1]].text
                self.report.error(
                    node.file, node.line_of(given), f"{given.spelled} is not known: {why}", got=got, fix=SET_IT
                )
                return
        values = [(node, given, given.value) for node, given in holders]
        if name == KV:
            values = self._transfer(values)
        _, first, value = values[0]
        for node, given, other in values[1:]:
            if to_json(other) != to_json(value):
                self._differ(node, node.line_of(given), given.spelled, _shown(other), _shown(value))
        # A headless process reads no port, and a master's default is as good as another's.
        if name not in self.profile.form.port_options.values():
            for node in self.nodes:
                if node.given(name) is None and not (node.headless and name in MASTER_ONLY):
                    self._differ(node, node.line, first.spelled, "nothing", _shown(value))
        self.config[name] = value

    def _only_id_unknown(self, given: Given) -> bool:
        """True where what the script does not say stands in engine_id alone, which Motor fills in."""
        if not isinstance(given.value, dict):
            return False
        without = {key: value for key, value in given.value.items() if key != "engine_id"}
        return not any(mark in to_json(without) for mark in ("$", "`"))

    def _transfer(self, values: list[tuple[Node, Given, Any]]) -> list[tuple[Node, Given, Any]]:
        """Without engine_id, which Motor makes for each engine and start; with the first of different ports."""
        ports = [value[KV_PORT] for _, _, value in values if isinstance(value, dict) and KV_PORT in value]
        lowest = min(ports, key=lambda port: int(port) if str(port).isdigit() else 0) if ports else None
        result = []
        for node, given, value in values:
            if isinstance(value, dict):
                if "engine_id" in value:
                    text = "engine_id is left out: Motor makes one for each engine and start"
                    self.report.note(node.file, node.line_of(given), text)
                if KV_PORT in value and value[KV_PORT] != lowest:
                    text = f"{KV_PORT} {value[KV_PORT]} is left out: it is the first port, and engines get others"
                    self.report.note(node.file, node.line_of(given), text)
                value = {k: lowest if k == KV_PORT else v for k, v in value.items() if k != "engine_id"}
            result.append((node, given, value))
        return result

    def _differ(self, node: Node, line: int, what: str, got: str, first: str) -> None:
        at = f"{self.nodes[0].file}:{self.nodes[0].line}"
        self.report.error(
            node.file,
            line,
            f"{what} is another one than in the command of {at}",
            got=got,
            expected=first,
            fix=f"make them equal, or convert them one at a time: all {self.role.value} engines get one section",
        )

    def _sizes(self) -> None:
        """nnodes of one group, ranks of one process, and how groups become engines; the shape for the rest."""
        nnodes, dp = self._size("nnodes"), self._size("data-parallel-size")
        port, rpc_port = (self.profile.form.port_options[kind] for kind in (PortKind.MASTER, PortKind.DP_RPC))
        if dp == 1 and self.config.pop(rpc_port, None) is not None:
            self._note(f"--{rpc_port} is left out: one group has no use for it")
        if nnodes > 1 and port not in self.config:
            self.config[port] = _MASTER_PORT
            self._note(f"{port} {_MASTER_PORT}: the engine's default")
        if self.profile.dp_in_process:
            self.shape = engine_shape("auto", self._shape(nnodes, dp, 1), self.profile)
            return
        external = self._external()
        nnodes_of_group, local = self._group(nnodes, dp, external)
        if "nnodes" in self.config:
            self.config["nnodes"] = nnodes_of_group
        if self.config.pop(LOCAL, None) is not None and local == 1:
            self._note(f"--{LOCAL} is left out: each process has one rank")
        if local > 1:
            self.config[LOCAL] = local
        self.shape = engine_shape("auto", self._shape(nnodes_of_group, dp, local), self.profile)
        if self.shape.dp > 1:
            self._choose_translation("native_external" if external else "native_internal")

    def _group(self, nnodes: int, dp: int, external: bool) -> tuple[int, int]:
        """Nodes of one group, and data-parallel ranks of one process (vLLM 0.32 engine/arg_utils.py:2380-2460)."""
        if dp == 1:
            return nnodes, 1
        if nnodes == 1:
            hybrid = any("data-parallel-hybrid-lb" in node.read.options for node in self.nodes)
            return 1, self._size(LOCAL) if LOCAL in self.config else 1 if external and not hybrid else dp
        if nnodes % dp == 0:
            return nnodes // dp, 1
        if dp % nnodes:
            what = f"{nnodes} nodes do not hold {dp} data-parallel ranks evenly"
            fix = "change --nnodes or --data-parallel-size"
            self.report.error(self.nodes[0].file, self.nodes[0].line, what, fix=fix)
        return 1, max(dp // nnodes, 1)

    def _shape(self, nnodes: int, dp: int, local: int) -> ParallelShape:
        return ParallelShape(
            tp=self._size("tensor-parallel-size"),
            pp=self._size("pipeline-parallel-size"),
            pcp=self._size("prefill-context-parallel-size"),
            dcp=self._size("decode-context-parallel-size"),
            dp=dp,
            nnodes=nnodes,
            expert_parallel=self.config.get("enable-expert-parallel") is True,
            dp_local=local,
        )

    def _size(self, name: str) -> int:
        value = self.config.get(name, 1)
        return value if isinstance(value, int) and value >= 1 else 1

    def _external(self) -> bool:
        """Whether every group has an API of its own (external or hybrid load balancing)."""
        names = {name for node in self.nodes for name in node.read.options}
        # vLLM 0.32 engine/arg_utils.py:2445-2460: a start rank on a process with an API says so too.
        starts = any(not node.headless and (node.value("data-parallel-start-rank") or 0) for node in self.nodes)
        return bool(starts or names & _EXTERNAL)

    def _choose_translation(self, wanted: str) -> None:
        """As the commands had it, where Motor has that for this engine; else each group is its own engine."""
        choice = choose_translation(wanted, self.shape, self.profile)
        if choice.refusal:
            self._note(f"each of {self.shape.dp} groups becomes an engine of its own: {choice.refusal}")
        else:
            self.translation = wanted

    def _note(self, text: str) -> None:
        self.report.note(self.nodes[0].file, self.nodes[0].line, text)

    def _instances(self) -> int:
        """How often the same place in an engine's world stands there: so many engines there are."""
        places = Counter(place for node in self.nodes if (place := self._place(node)) is not None)
        most, count = max(places.items(), key=lambda item: item[1]) if places else (None, 1)
        if count == 1:
            return 1
        same = [node for node in self.nodes if self._place(node) == most]
        masters = {node.value("master-addr") for node in same}
        if len(masters) == 1 and masters != {None}:
            node, other = same[1], same[0]
            what = f"the place of {other.file}:{other.line} in the engine's world again ({most})"
            self.report.error(node.file, node.line, what, expected="another rank, or another --master-addr")
        self.report.note(
            same[0].file, same[0].line, f"{count} engines of this kind: {INSTANCE_KEYS[self.role]} {count}"
        )
        return count

    def _place(self, node: Node) -> str | None:
        """None where the script does not say it."""
        for name in ("node-rank", "data-parallel-rank", "data-parallel-start-rank"):
            given = node.given(name)
            if given is not None:
                return None if node.unknown(given.at) else f"--{name} {given.value}"
        return "one without a rank"

    def _extra_args(self) -> list[str]:
        """Words of flags that the list does not have, alike on all nodes."""
        first: list[str] = []
        for number, node in enumerate(self.nodes):
            words = [node.engine.words[at] for positions in node.read.unknown for at in positions]
            for word in words:
                if word.unknown:
                    what = f"not known: {word.unknown}"
                    self.report.error(node.file, word.line, what, got=word.text, fix=SET_IT)
            texts = [word.text for word in words]
            if number == 0:
                first = texts
                for positions in node.read.unknown:
                    word = node.engine.words[positions[0]]
                    text = f"{word.text} goes to extra_args: {self._why_extra(word.text)}"
                    self.report.note(node.file, word.line, text)
            elif texts != first:
                self._differ(node, node.line, "what goes to extra_args", " ".join(texts), " ".join(first))
        return first

    def _why_extra(self, word: str) -> str:
        if word.lstrip("-").split("=")[0] == "middleware":
            return "it stands several times"
        return f"it is no flag in the list of {self.profile.name}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value)
