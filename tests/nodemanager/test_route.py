"""Whom a node dials next."""

from __future__ import annotations

from nodemanager.route import MAX_BROKEN, MAX_HOPS, End, Route

A, B, C, D = (("10.0.0.1", 1028), ("10.0.0.2", 1028), ("10.0.0.3", 1028), ("10.0.0.4", 1028))


def test_the_list_is_gone_through_in_a_circle() -> None:
    route = Route([A, B, C])
    seen = []
    for _ in range(4):
        seen.append(route.target)
        assert not route.after(End.NO_ANSWER)
    assert seen == [A, B, C, A] and route.tried == A and route.rounds == 1


def test_a_broken_session_is_dialled_again_and_a_silent_one_is_not() -> None:
    route = Route([A, B])
    route.registered()
    assert not route.after(End.BROKE) and route.target == A and route.tried is None
    route.registered()
    assert not route.after(End.SILENT) and route.target == B and route.tried == A
    route.registered()
    assert route.tried is None


def test_one_that_breaks_every_session_is_left() -> None:
    route = Route([A, B])
    for _ in range(MAX_BROKEN + 1):
        assert route.target == A
        route.registered()
        route.after(End.BROKE)
    assert route.target == B
    route.settled()
    assert route.failures == 0


def test_a_named_leader_is_followed_and_kept() -> None:
    route = Route([A, B])
    assert route.after(End.NOT_LEADER, D) and route.target == D
    route.registered()
    assert not route.after(End.BROKE) and route.target == D, "it may have been restarted"
    assert not route.after(End.NO_ANSWER) and route.target == A and route.tried == D


def test_a_named_leader_that_does_not_lead_is_told_to_the_one_that_named_it() -> None:
    """It was deposed, and its lease is not over: the standby keeps the node until another leads."""
    route = Route([A, B])
    assert route.after(End.NOT_LEADER, B) and route.target == B
    assert not route.after(End.NOT_LEADER, None) and route.target == A and route.tried == B


def test_hops_are_bounded_and_the_list_goes_on() -> None:
    route = Route([A, B, C])
    for _ in range(MAX_HOPS):
        assert route.after(End.NOT_LEADER, B if route.target == A else A)
    assert not route.after(End.NOT_LEADER, B) and route.target == B
    assert route.after(End.NOT_LEADER, C), "after a wait it may be followed again"


def test_nobody_and_itself_are_no_leader_to_follow() -> None:
    route = Route([A, B])
    assert not route.after(End.NOT_LEADER, None) and route.target == B
    assert not route.after(End.NOT_LEADER, B) and route.target == A


def test_only_a_secure_enough_stranger_is_followed() -> None:
    route = Route([A, B], may_dial=lambda host: False)
    assert not route.after(End.NOT_LEADER, D) and route.target == B
    assert route.after(End.NOT_LEADER, A), "one of the list is no stranger"
