"""The ledger: a port has one owner on a host, whatever is taken and released in between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controller.core.ports import PortLedger


def test_take_gives_the_first_free_candidate() -> None:
    ledger = PortLedger()
    assert ledger.take("n1", "a", range(7001, 7003)) == 7001
    assert ledger.take("n1", "b", range(7001, 7003)) == 7002
    assert ledger.take("n1", "c", range(7001, 7003)) is None
    assert ledger.take("n2", "c", range(7001, 7003)) == 7001
    assert ledger.ports_on("n1") == {7001: "a", 7002: "b"}


def test_release_frees_everything_of_an_owner_and_may_come_twice() -> None:
    ledger = PortLedger()
    ledger.take("n1", "a", [8000])
    ledger.take("n2", "a", [8000])
    ledger.take("n2", "b", [8001])
    ledger.release("a")
    ledger.release("a")
    assert ledger.ports_on("n1") == {}
    assert ledger.ports_on("n2") == {8001: "b"}


def test_what_is_handed_out_is_a_copy() -> None:
    ledger = PortLedger()
    ledger.take("n1", "a", [8000])
    ledger.ports_on("n1").clear()
    assert ledger.ports_on("n1") == {8000: "a"}


STEP = st.tuples(st.sampled_from(["h1", "h2"]), st.sampled_from("abc"), st.lists(st.integers(1, 4))) | st.sampled_from(
    "abc"
)


@given(st.lists(STEP))
def test_it_agrees_with_a_table(steps: list[tuple[str, str, list[int]] | str]) -> None:
    ledger = PortLedger()
    table: dict[tuple[str, int], str] = {}
    for step in steps:
        if isinstance(step, str):
            ledger.release(step)
            table = {key: owner for key, owner in table.items() if owner != step}
            continue
        host, owner, candidates = step
        free = next((port for port in candidates if (host, port) not in table), None)
        assert ledger.take(host, owner, candidates) == free
        if free is not None:
            table[host, free] = owner
    for host in ("h1", "h2"):
        assert ledger.ports_on(host) == {port: owner for (h, port), owner in table.items() if h == host}
