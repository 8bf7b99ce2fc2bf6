"""What an engine command line is made from, and what comes out: plain values, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from engine_launch.flags import Option, read_options
from engine_launch.health import HealthChecks
from engine_launch.override import NO_OVERRIDE, Override


class Role(str, Enum):
    """What an instance does for its requests; `union` does prefill and decode in one engine."""

    PREFILL = "prefill"
    DECODE = "decode"
    UNION = "union"


class Translation(str, Enum):
    """How groups become engine command lines (translation.py has the table).

    vLLM's `--nnodes` counts all nodes of one engine world. REPLICA gives each group a world of its own;
    the native forms put all groups of an instance into one world.
    """

    REPLICA = "replica"
    NATIVE_EXTERNAL = "native_external"
    NATIVE_INTERNAL = "native_internal"

    @property
    def one_world(self) -> bool:
        """True where all groups of the instance share one engine world and restart together."""
        return self is not Translation.REPLICA


class NodeLocal(str, Enum):
    """A value that only the node knows; `motorctl plan` prints it as `<node>`."""

    ADDRESS = "address"
    INTERFACE = "interface"
    DEVICES = "devices"


@dataclass(frozen=True)
class ParallelShape:
    """Sizes of the parallel dimensions of one instance.

    `nnodes` counts the nodes of one group, as the configuration does; what an engine's own `--nnodes` gets
    depends on the translation.
    """

    tp: int = 1
    pp: int = 1
    pcp: int = 1
    dcp: int = 1
    dp: int = 1
    nnodes: int = 1
    expert_parallel: bool = False
    dp_local: int = 1  # data-parallel ranks that every process holds by itself: they are no groups of their own

    @property
    def group_world(self) -> int:
        """Workers of one data-parallel rank: pp x pcp x tp (vLLM 0.32 config/parallel.py:943-949).

        dp and dcp do not enter.
        """
        return self.tp * self.pp * self.pcp

    @property
    def workers_per_node(self) -> int:
        """Workers, and so devices, of one slot. Exact only after validation (group_world % nnodes == 0)."""
        return self.dp_local * self.group_world // self.nnodes


@dataclass(frozen=True)
class KvSizes:
    """Sizes of one side of a prefill/decode pair, as `kv_connector_extra_config` spells them. Of one engine world:
    `dp_size` is 1 where each group is its own engine."""

    dp_size: int = 1
    tp_size: int = 1
    pp_size: int = 1
    pcp_size: int = 1
    dcp_size: int = 1


@dataclass(frozen=True)
class KvPlan:
    """What filling in an instance's kv_transfer_config takes beyond its own section (kv_transfer.py)."""

    sizes: Mapping[Role, KvSizes] = field(default_factory=dict)  # of each side that the file has
    first_port: int | None = None  # of the section's first engine world; None: the connector opens none
    port_step: int = 0  # from one engine world's first port to the next one's; 0: no two worlds share a host
    first_world: int = 0  # this instance's first engine world, counted over all instances of the section


@dataclass(frozen=True)
class EngineSpec:
    """One instance's engine as the operator wrote it, after validation."""

    engine_type: str  # as in the file: vllm
    profile: str  # name@version of the engine profile, e.g. vllm_ascend@0.23
    engine: str  # key of `engines` in a node's file
    shape: ParallelShape
    translation: Translation
    model: str
    engine_config: Mapping[str, Any]  # keys as written, values untouched
    env: Mapping[str, str] = field(default_factory=dict)
    extra_args: tuple[str, ...] = ()
    health: HealthChecks = field(default_factory=HealthChecks)
    override: Override = NO_OVERRIDE
    kv: KvPlan | None = None  # None: no KV transfer, or one that is passed on as written

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """`engine_config` with its names normalised, in file order. Read once: every command asks several times."""
        return tuple(read_options(self.engine_config))


@dataclass(frozen=True)
class Assignment:
    """One slot's place in its engine world: everything the command line needs beside the EngineSpec.

    Addresses are literals without brackets, or placeholders such as `<prefill-0/0/0>` when only planning.
    """

    instance: str
    role: Role
    dp_rank: int
    node_rank: int  # within the group
    address: str  # data address of this slot's node
    master_addr: str  # node_rank 0 of this slot's engine world
    master_port: int
    api_port: int | None  # None on processes without an API server
    dp_rpc_port: int | None  # only in native translations
    run_id: str = ""  # of this generation; new with each start


@dataclass(frozen=True)
class EngineCommand:
    """The canonical command of one engine process."""

    argv: tuple[str, ...]  # argv[0] is the engine's command name; the node resolves it
    env: Mapping[str, str]  # node-independent
    node_env: Mapping[str, NodeLocal]  # the node fills these
    headless: bool
    api_host: str | None
    api_port: int | None
    health_path: str | None
    ports: tuple[int, ...]  # every fixed port this process opens on its node
    expected_workers: int
    drain_seconds: float  # a planned stop waits this long for running requests; 0 = they are aborted
    argv_digest: str  # sha256 over argv, env and the names of node_env


@dataclass(frozen=True)
class StageMarker:
    """A line of the engine's own log that tells how far its start has come."""

    stage: str
    pattern: str  # regular expression, searched in one line
    headline: str  # shown to people: "waiting for rendezvous"


@dataclass(frozen=True)
class FatalPattern:
    """A line that tells why an engine ends, and what a restart policy should do about it."""

    pattern: str
    failure_class: str  # configuration | port | transient | group
    meaning: str


@dataclass(frozen=True)
class WarningPattern:
    """A line of a serving engine that warns early and proves nothing."""

    pattern: str
    meaning: str
