"""Which workers are there, from tables of process titles."""

from __future__ import annotations

import pytest

from nodemanager.workers import Presence, Tree, Worker


def tree(*titles: str) -> Tree:
    return Tree(tuple(Worker(title, 100 + number) for number, title in enumerate(titles)))


@pytest.mark.parametrize(
    ("first", "then", "lost"),
    [
        (("W_TP0", "W_TP1"), ("W_TP0",), ("W_TP1",)),
        (("W_TP0", "W_TP1"), ("W_TP1", "W_TP0"), ()),
        (("W", "W"), ("W",), ("W",)),  # two ranks of a dense engine in one process tree
        (("W", "W"), ("W_TP0", "W_TP1"), ()),  # they have taken their names meanwhile
        ((), ("W",), ()),
        (("W_TP0", "W_TP1"), (), ("W_TP0", "W_TP1")),
    ],
)
def test_a_worker_that_was_there_and_is_gone_has_a_name(
    first: tuple[str, ...], then: tuple[str, ...], lost: tuple[str, ...]
) -> None:
    presence = Presence(2)
    presence.take(tree(*first))
    presence.take(tree(*then))
    assert presence.lost == lost
