"""What the rows about several controllers and etcd rest on."""

from __future__ import annotations

from tests.faults.mutation import Edit, Mutation, wall_clock_in

FAILOVER = "tests/ha/test_failover.py::"
FAULTS = "tests/ha/test_ha_faults.py::"
TERM = "tests/ha/test_term.py::"
ETCD = "tests/store/test_etcd_failures.py::"

DAEMON = "controller/daemon.py"
ELECTION = "controller/store/etcd_election.py"
LEADERSHIP = "controller/leadership.py"
LEASE = "controller/store/etcd_lease.py"
SERVICE = "controller/service.py"
SESSIONS = "controller/api/sessions.py"
ROUTE = "nodemanager/route.py"

# Its own clock, looked at before it says or decides anything; and the store's word, which comes a moment later.
NEVER_DEPOSED = (
    Edit(
        SERVICE, "        if not self.over and time.monotonic() >= self._store.holds_until():\n", "        if False:\n"
    ),
    Edit(SERVICE, "wait({lost, self._silenced}, return_when", "wait({self._silenced}, return_when"),
)
NODES_STAY_WHERE_THEY_ARE = Edit(
    ROUTE, "            self._at = (self._at + 1) % len(self._listed)\n", "            pass\n"
)
KEPT_TO_THE_END = Edit(
    SERVICE, "                task.cancel()\n        await self._store.close()\n", "                task.cancel()\n"
)

CONTROLLERS: tuple[Mutation, ...] = (
    Mutation(
        "Controllers: leader killed with SIGKILL",
        (f"{FAILOVER}test_a_killed_leader_is_followed_by_the_standby",),
        "a node goes on to the next controller of its list",
        "all nodes to be with the new leader",
        (NODES_STAY_WHERE_THEY_ARE,),
    ),
    Mutation(
        "Controllers: `motorctl step-down`, or SIGTERM",
        (f"{FAILOVER}test_planned_hand_over", f"{FAILOVER}test_sigterm_hands_over_too"),
        "a leader that ends gives its lease back",
        ("a controller to lead", "let go, not run out"),
        (KEPT_TO_THE_END,),
    ),
    Mutation(
        "Controllers: leader frozen past its lease, an order waiting at its door",
        (f"{FAULTS}test_a_frozen_leader_finds_itself_deposed",),
        "a leader goes by its own clock, and hears of the loss of its key",
        ("(307, 409, 503)", "the old leader to stand by"),
        NEVER_DEPOSED,
    ),
    Mutation(
        "Controllers: ... while it stops a gang",
        (f"{FAULTS}test_a_frozen_leader_orders_nothing_of_what_it_had_begun",),
        "a leader goes by its own clock, and hears of the loss of its key",
        "the old leader to stand by",
        NEVER_DEPOSED,
    ),
    Mutation(
        "Controllers: ... with a command in its queue",
        (f"{TERM}test_what_was_queued_before_a_sleep_never_leaves",),
        "the clock is looked at before each message that leaves",
        '"asleep" not in map',
        (Edit(SESSIONS, "if message is self._last or self._may_order():", "if True:"),),
    ),
    Mutation(
        "Controllers: leader cut off from etcd",
        (f"{FAULTS}test_the_leader_is_cut_off_from_etcd_only",),
        "a leader goes by its own clock, and hears of the loss of its key",
        "not within",
        NEVER_DEPOSED,
    ),
    Mutation(
        "Controllers: leader cut off from all nodes",
        (f"{FAULTS}test_the_leader_is_cut_off_from_the_nodes_only",),
        "a node goes on to the next controller of its list",
        "everything to be there",
        (NODES_STAY_WHERE_THEY_ARE,),
    ),
    Mutation(
        "Controllers: one member of etcd after the other dies",
        (f"{FAULTS}test_each_member_of_etcd_dies_in_turn",),
        "the next member is asked when one does not answer",
        "the lead does not move",
        (Edit("controller/store/etcd_client.py", "        self.channels.move_on(index)\n", ""),),
    ),
    Mutation(
        "Controllers: etcd frozen for 1.5 s",
        (f"{FAULTS}test_all_of_etcd_freezes_for_a_moment",),
        "one failed renewal does not give the lease up",
        "the lead does not move",
        (
            Edit(
                LEASE,
                "                    await asyncio.sleep(RETRY_SECONDS)\n                    continue\n",
                "                    raise\n",
            ),
        ),
    ),
    Mutation(
        "Controllers: etcd without a quorum for longer than the lease",
        (f"{FAULTS}test_quorum_is_lost_and_comes_back",),
        "the last picture is kept",
        "stale.status_code == 200",
        (
            Edit(
                LEADERSHIP,
                "self.ended, self.term, self.trouble = self.term, None",
                "self.ended, self.term, self.trouble = None, None",
            ),
        ),
    ),
    Mutation(
        "Controllers: etcd without a quorum for longer than the lease",
        (f"{ETCD}test_a_lease_that_could_not_be_given_back_is_given_back_when_etcd_answers",),
        "a lease that could not be given back is given back later",
        "TimeoutError",
        (Edit("controller/store/etcd.py", "                    await pay(client, self._owed)\n", ""),),
    ),
    Mutation(
        "Controllers: everything starts before etcd",
        (f"{FAULTS}test_etcd_is_away_while_a_controller_starts",),
        "a controller answers before its store does",
        "it to answer without its store",
        (Edit(DAEMON, "        if not shared(deployment):\n", "        if True:\n"),),
    ),
    Mutation(
        "Controllers: wall clock of the leader jumps by an hour, both ways",
        (f"{FAULTS}test_the_leaders_wall_clock_jumps",),
        "leases are counted on the monotonic clock",
        "the lead does not move",
        tuple(wall_clock_in(file) for file in (SERVICE, ELECTION, LEASE)),
    ),
)
