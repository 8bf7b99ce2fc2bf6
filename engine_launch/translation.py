"""Where a slot stands in its engine's world: the field's ranks (per group) become vLLM's (per world).

vLLM's `--nnodes` counts all nodes of one engine world and `--node-rank` is global over them (vLLM 0.32
engine/arg_utils.py:2358-2383; run on 0.32 and 0.33). The configuration's `nnodes` counts the nodes of one
group. Three translations are legal:

=================  ===================  =====================  ==================  =============
translation        --nnodes             --node-rank            --data-parallel-*   API server on
=================  ===================  =====================  ==================  =============
replica            n                    r                      none                r == 0
native_external    dp * n               g * n + r              size, rank g        r == 0
native_internal    dp * n               g * n + r              size                g == r == 0
=================  ===================  =====================  ==================  =============

with n nodes a group, group g (= dp_rank), node r of the group. The obvious `--nnodes n --node-rank r
--data-parallel-rank g` is refused by vLLM, or silently becomes another topology with a size-local of 1.

Where one process holds several data-parallel ranks (`data-parallel-size-local` m > 1, the usual decode side), a group
is one process on one node: n is 1, g counts processes, and vLLM's older multi-node form is used, without `--nnodes`:

=================  =====================================  ===============================  =============
translation        --data-parallel-size, --...-size-local  --data-parallel-start-rank       API server on
=================  =====================================  ===============================  =============
replica            m                                      none                             every process
native_external    dp * m, m (and --...-hybrid-lb)        g * m                            every process
native_internal    dp * m, m                              g * m, on headless ones alone    g == 0
=================  =====================================  ===============================  =============
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine_launch.model import ParallelShape, Translation
from engine_launch.profile import EngineProfile


@dataclass(frozen=True)
class WorldPlace:
    """One slot in its engine world."""

    nnodes: int  # what the engine's --nnodes means; 1 = a plain engine on one node, no multi-node flag at all
    node_rank: int  # the engine's --node-rank
    dp_size: int  # 1 = no --data-parallel flag at all
    dp_rank: int | None  # --data-parallel-rank, in native_external only
    has_api: bool  # else --headless
    opens_master_port: bool  # the torch store of the world listens here
    opens_dp_rpc_port: bool  # the data-parallel handshake (ZMQ) listens here
    dp_local: int = 1  # --data-parallel-size-local: ranks of this process; 1 = not passed
    dp_start_rank: int | None = None  # --data-parallel-start-rank
    hybrid: bool = False  # --data-parallel-hybrid-lb: each process balances over its own ranks

    @property
    def headless(self) -> bool:
        return not self.has_api


def world_place(shape: ParallelShape, translation: Translation, dp_rank: int, node_rank: int) -> WorldPlace:
    """The place of slot (dp_rank, node_rank). ValueError for ranks outside the shape."""
    if not 0 <= dp_rank < shape.dp:
        raise ValueError(f"dp_rank {dp_rank} is outside 0..{shape.dp - 1}")
    if not 0 <= node_rank < shape.nnodes:
        raise ValueError(f"node_rank {node_rank} is outside 0..{shape.nnodes - 1}")
    if translation is Translation.REPLICA or shape.dp == 1:
        return _replica(shape, node_rank)
    if shape.dp_local > 1:
        return _native_processes(shape, translation, dp_rank)
    return _native(shape, translation, dp_rank, node_rank)


def world_master(translation: Translation, dp_rank: int) -> tuple[int, int]:
    """(dp_rank, node_rank) of the slot whose address is `--master-addr` for group `dp_rank`."""
    return (0 if translation.one_world else dp_rank, 0)


def _replica(shape: ParallelShape, node_rank: int) -> WorldPlace:
    return WorldPlace(
        nnodes=shape.nnodes,
        node_rank=node_rank,
        dp_size=1,
        dp_rank=None,
        has_api=node_rank == 0,
        # A plain single-node engine takes a free port of its own choice for its torch store.
        opens_master_port=node_rank == 0 and shape.nnodes > 1,
        opens_dp_rpc_port=False,
    )


def _native(shape: ParallelShape, translation: Translation, dp_rank: int, node_rank: int) -> WorldPlace:
    external = translation is Translation.NATIVE_EXTERNAL
    rank = dp_rank * shape.nnodes + node_rank
    return WorldPlace(
        nnodes=shape.dp * shape.nnodes,
        node_rank=rank,
        dp_size=shape.dp,
        # An explicit rank selects external load balancing. --data-parallel-external-lb beside it makes 0.30
        # overwrite the rank, and a size-local makes 0.31 and newer build another topology: neither is passed.
        dp_rank=dp_rank if external else None,
        has_api=node_rank == 0 and (external or dp_rank == 0),
        opens_master_port=rank == 0,
        opens_dp_rpc_port=rank == 0,
    )


def _native_processes(shape: ParallelShape, translation: Translation, group: int) -> WorldPlace:
    """One process for each group, with several ranks in it (vLLM 0.32 engine/arg_utils.py:2442-2473)."""
    external = translation is Translation.NATIVE_EXTERNAL
    has_api = external or group == 0
    return WorldPlace(
        nnodes=1,
        node_rank=0,
        dp_size=shape.dp * shape.dp_local,
        dp_rank=None,
        has_api=has_api,
        opens_master_port=False,  # the ranks' torch store takes free ports, told over the handshake
        opens_dp_rpc_port=group == 0,
        dp_local=shape.dp_local,
        # On a process with an API a start rank means hybrid load balancing, whatever else is said.
        dp_start_rank=group * shape.dp_local if external or not has_api else None,
        hybrid=external,
    )


@dataclass(frozen=True)
class TranslationChoice:
    """The translation, why it is this one, and what is wrong with the one that was asked for."""

    translation: Translation
    reason: str  # one sentence without a full stop
    refusal: str = ""  # not empty: the wanted translation does not work with this engine


def engine_shape(wanted: str, shape: ParallelShape, profile: EngineProfile) -> ParallelShape:
    """The shape as this engine has it: where one process holds several data-parallel ranks, they are no groups.

    `shape` has the sizes of the file: dp counts all ranks, dp_local is data-parallel-size-local. One that does not fit
    (vllm_rules.py says so) makes every rank a group. `wanted` is `dp_translation` of deploy.json; where a process
    holds all ranks by itself, `replica` makes each rank a group with an engine of its own.
    """
    if profile.dp_in_process:
        return replace(shape, dp=1, dp_local=shape.dp) if wanted == "auto" else replace(shape, dp_local=1)
    local = shape.dp_local
    if local == 1:
        return shape
    if shape.nnodes > 1 or shape.dp % local:
        return replace(shape, dp_local=1)
    return replace(shape, dp=shape.dp // local)


def choose_translation(wanted: str, shape: ParallelShape, profile: EngineProfile) -> TranslationChoice:
    """`wanted` is `dp_translation` of deploy.json. A refusal comes with REPLICA, which always works."""
    if shape.dp_local > 1 and shape.dp == 1:
        auto = "auto: " if wanted == "auto" else ""
        reason = f"{auto}one {profile.engine} process holds all {shape.dp_local} data-parallel ranks"
        return TranslationChoice(Translation.REPLICA, reason)
    if shape.dp == 1:
        reason = "one group: its engine's world is the group, and all translations agree"
        return TranslationChoice(Translation.REPLICA, reason)
    if wanted == Translation.REPLICA.value:
        return TranslationChoice(Translation.REPLICA, "dp_translation in the file: each group is its own engine")
    native = Translation.NATIVE_EXTERNAL if wanted == "auto" else Translation(wanted)
    obstacle = _obstacle(native, shape, profile)
    if wanted == "auto":
        if obstacle:
            return TranslationChoice(Translation.REPLICA, f"auto: each group is its own engine, since {obstacle}")
        groups = f"{shape.dp} {'processes' if shape.dp_local > 1 else 'groups'}"
        reason = f"auto: expert parallelism is on, {groups}, and {profile.name} allows one world over all"
        return TranslationChoice(native, reason)
    if obstacle:
        return TranslationChoice(Translation.REPLICA, f"{wanted} does not work: {obstacle}", obstacle)
    return TranslationChoice(native, "dp_translation in the file: one engine world over all groups")


def _obstacle(translation: Translation, shape: ParallelShape, profile: EngineProfile) -> str:
    """Why groups cannot share one world, or nothing."""
    if not profile.native:
        return f"{profile.name} has no world over several processes"
    if not shape.expert_parallel:
        # vLLM 0.32 engine/arg_utils.py:2415-2424 refuses external; internal passes, and its start fails.
        return "enable-expert-parallel is off, and one world over several groups is for mixture of experts only"
    if shape.pcp > 1 and not profile.pcp_with_dp:
        return f"{profile.name} refuses PCP together with data parallelism in one world"
    if translation not in profile.native:
        return f"{profile.name} does not support {translation.value}"
    return ""
