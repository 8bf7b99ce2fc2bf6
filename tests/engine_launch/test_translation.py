"""Ranks in the group become ranks in the engine's world."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_launch.model import ParallelShape, Translation
from engine_launch.profiles import resolve
from engine_launch.translation import WorldPlace, choose_translation, engine_shape, world_master, world_place

# The matrix that was run on vLLM 0.32 and 0.33: tp 4, pcp 2, dp 4, two nodes a group, node k = 2 g + r.
SHAPE = ParallelShape(tp=4, pcp=2, dp=4, nnodes=2, expert_parallel=True)
NODES = [(g, r) for g in range(4) for r in range(2)]


@pytest.mark.parametrize(("g", "r"), NODES)
def test_replica_makes_every_group_an_engine_of_its_own(g: int, r: int) -> None:
    place = world_place(SHAPE, Translation.REPLICA, g, r)
    assert (place.nnodes, place.node_rank, place.dp_size, place.dp_rank) == (2, r, 1, None)
    assert place.has_api == (r == 0) == place.opens_master_port
    assert world_master(Translation.REPLICA, g) == (g, 0)


@pytest.mark.parametrize(("g", "r"), NODES)
def test_native_external_counts_all_nodes_and_serves_on_every_group(g: int, r: int) -> None:
    place = world_place(SHAPE, Translation.NATIVE_EXTERNAL, g, r)
    assert (place.nnodes, place.node_rank, place.dp_size, place.dp_rank) == (8, 2 * g + r, 4, g)
    assert place.has_api == (r == 0)
    assert place.opens_master_port == place.opens_dp_rpc_port == ((g, r) == (0, 0))
    assert world_master(Translation.NATIVE_EXTERNAL, g) == (0, 0)


@pytest.mark.parametrize(("g", "r"), NODES)
def test_native_internal_serves_on_the_first_node_only(g: int, r: int) -> None:
    place = world_place(SHAPE, Translation.NATIVE_INTERNAL, g, r)
    assert (place.nnodes, place.node_rank, place.dp_size, place.dp_rank) == (8, 2 * g + r, 4, None)
    assert place.has_api == ((g, r) == (0, 0))
    assert place.headless == (not place.has_api)


def test_one_node_and_one_group_is_a_plain_engine() -> None:
    for translation in Translation:
        assert world_place(ParallelShape(tp=8), translation, 0, 0) == WorldPlace(1, 0, 1, None, True, False, False)


@pytest.mark.parametrize(("g", "r"), [(4, 0), (0, 2), (-1, 0), (0, -1)])
def test_ranks_outside_the_shape_are_refused(g: int, r: int) -> None:
    with pytest.raises(ValueError, match="outside 0"):
        world_place(SHAPE, Translation.NATIVE_EXTERNAL, g, r)


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from(Translation))
def test_every_world_has_each_rank_once_and_one_master(dp: int, nnodes: int, translation: Translation) -> None:
    shape = ParallelShape(tp=nnodes, dp=dp, nnodes=nnodes, expert_parallel=True)
    worlds: dict[tuple[int, int], list[WorldPlace]] = {}
    for g in range(dp):
        for r in range(nnodes):
            worlds.setdefault(world_master(translation, g), []).append(world_place(shape, translation, g, r))
    for places in worlds.values():
        assert sorted(place.node_rank for place in places) == list(range(places[0].nnodes))
        assert sum(place.opens_master_port for place in places) == (places[0].nnodes > 1)
        assert places[0].has_api and places[0].node_rank == 0
        assert len({(place.nnodes, place.dp_size) for place in places}) == 1


MOE = ParallelShape(tp=4, dp=2, nnodes=2, expert_parallel=True)
DENSE = ParallelShape(tp=4, dp=2, nnodes=2)
MOE_PCP = ParallelShape(tp=4, pcp=2, dp=2, nnodes=2, expert_parallel=True)


@pytest.mark.parametrize(
    ("wanted", "shape", "profile", "translation", "reason"),
    [
        ("auto", ParallelShape(tp=4, nnodes=2), "vllm@0.32", Translation.REPLICA, "one group"),
        ("auto", DENSE, "vllm@0.32", Translation.REPLICA, "enable-expert-parallel is off"),
        ("auto", MOE, "vllm@0.32", Translation.NATIVE_EXTERNAL, "expert parallelism is on, 2 groups"),
        ("auto", MOE_PCP, "vllm@0.29", Translation.REPLICA, "refuses PCP together with data parallelism"),
        ("auto", MOE_PCP, "vllm@0.30", Translation.NATIVE_EXTERNAL, "vllm@0.30 allows"),
        ("auto", MOE_PCP, "vllm_ascend@0.21", Translation.NATIVE_EXTERNAL, "vllm_ascend@0.21 allows"),
        ("auto", MOE_PCP, "vllm_ascend@0.22", Translation.REPLICA, "vllm_ascend@0.22 refuses"),
        ("auto", MOE, "vllm_ascend@0.23", Translation.NATIVE_EXTERNAL, "vllm_ascend@0.23 allows"),
        ("replica", MOE, "vllm@0.32", Translation.REPLICA, "in the file"),
        ("native_internal", MOE, "vllm@0.32", Translation.NATIVE_INTERNAL, "in the file"),
    ],
)
def test_choice(wanted: str, shape: ParallelShape, profile: str, translation: Translation, reason: str) -> None:
    choice = choose_translation(wanted, shape, resolve(profile))
    assert choice.translation is translation
    assert reason in choice.reason
    assert not choice.refusal


@pytest.mark.parametrize(("wanted", "shape"), [("native_external", DENSE), ("native_internal", DENSE)])
def test_one_world_over_a_dense_model_is_refused(wanted: str, shape: ParallelShape) -> None:
    choice = choose_translation(wanted, shape, resolve("vllm@0.32"))
    assert choice.translation is Translation.REPLICA
    assert "mixture of experts only" in choice.refusal


# Usual decode: 16 ranks of one device each over 2 processes, 8 in each.
DECODE = ParallelShape(dp=16, dp_local=8, expert_parallel=True)


@pytest.mark.parametrize(
    ("translation", "group", "expected"),
    [
        # dp_size, dp_local, dp_start_rank, hybrid, has_api, opens_dp_rpc_port
        (Translation.NATIVE_INTERNAL, 0, (16, 8, None, False, True, True)),
        (Translation.NATIVE_INTERNAL, 1, (16, 8, 8, False, False, False)),
        (Translation.NATIVE_EXTERNAL, 0, (16, 8, 0, True, True, True)),
        (Translation.NATIVE_EXTERNAL, 1, (16, 8, 8, True, True, False)),
        # An engine of its own for each process: the ranks in it are the process's own affair.
        (Translation.REPLICA, 1, (1, 1, None, False, True, False)),
    ],
)
def test_several_ranks_in_one_process(translation: Translation, group: int, expected: tuple[object, ...]) -> None:
    shape = engine_shape("auto", DECODE, resolve("vllm@0.32"))
    assert (shape.dp, shape.dp_local, shape.workers_per_node) == (2, 8, 8)
    place = world_place(shape, translation, group, 0)
    assert (place.nnodes, place.node_rank, place.dp_rank, place.opens_master_port) == (1, 0, None, False)
    found = (
        place.dp_size,
        place.dp_local,
        place.dp_start_rank,
        place.hybrid,
        place.has_api,
        place.opens_dp_rpc_port,
    )
    assert found == expected


@pytest.mark.parametrize(
    ("dp", "local", "nnodes", "groups", "in_process"),
    [(16, 8, 1, 2, 8), (8, 8, 1, 1, 8), (8, 1, 1, 8, 1), (8, 3, 1, 8, 1), (8, 2, 2, 8, 1)],
)
def test_ranks_in_a_process_where_they_fit(dp: int, local: int, nnodes: int, groups: int, in_process: int) -> None:
    shape = engine_shape("auto", ParallelShape(dp=dp, dp_local=local, nnodes=nnodes), resolve("vllm@0.32"))
    assert (shape.dp, shape.dp_local) == (groups, in_process)


def test_a_process_with_all_ranks_is_no_world() -> None:
    shape = engine_shape("native_internal", ParallelShape(dp=8, dp_local=8), resolve("vllm@0.32"))
    choice = choose_translation("native_internal", shape, resolve("vllm@0.32"))
    assert (
        choice.translation is Translation.REPLICA
        and choice.reason == "one vllm process holds all 8 data-parallel ranks"
    )
