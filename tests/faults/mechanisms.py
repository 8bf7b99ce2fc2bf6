"""What each row of docs/faults.md rests on, and how to take it out: data for `mutations.py`.

Where two mechanisms cover one fault, both are taken out, and `removed` names both. Where the row says "nothing
happens", what is taken out is the patience: the mutation puts in the hasty judgement that the design avoids.
"""

from __future__ import annotations

from tests.faults.mechanisms_controllers import CONTROLLERS
from tests.faults.mutation import Edit, Mutation, wall_clock_in

KILLS = "tests/faults/test_kills.py::"
FREEZES = "tests/faults/test_freezes.py::"
LINKS = "tests/faults/test_links.py::"
STARTING = "tests/faults/test_starting.py::"
CLOCKS = "tests/faults/test_clocks.py::"
UNREACHABLE = "tests/cluster/test_unreachable.py::"

ADOPTION = "controller/core/adoption.py"
ASSEMBLY = "controller/core/assembly.py"
LIVENESS = "controller/core/liveness.py"
MEMBERSHIP = "controller/core/membership.py"
STAGE_LIMITS = "controller/core/stage_limits.py"
STOPPING = "controller/core/stopping.py"
SERVICE = "controller/service.py"
SESSIONS = "controller/api/sessions.py"
MANAGER = "nodemanager/service.py"
SUPERVISOR = "nodemanager/supervisor.py"
UNREPORTED_END = "nodemanager/unreported_end.py"
SHIM = "nodemanager/shim.py"
VITALS = "nodemanager/vitals.py"
CANARY = "nodemanager/canary.py"
LINK = "nodemanager/link.py"
PREPARE = "nodemanager/prepare.py"

#: of Cluster.untouched: another generation, one that is being stopped, one whose processes are gone
RESTARTED = (
    'found["generation"] == before.generations[group]',
    'm["pid"] for m in found["members"]} ==',
    'all(runs(m["pid"]) for m in found["members"])',
)
UNANSWERED = "answers("

# -- edits that more than one row needs --------------------------------------------------------------------------

_MEMBER_FAILS = "        fail(s, scope, slot, node_id, _ending(report), report)\n"
NO_END_COUNTS = Edit(STOPPING, _MEMBER_FAILS, "        pass\n")
EXIT_0_IS_FINE = Edit(STOPPING, _MEMBER_FAILS, f"        if report.exit_code != 0:\n    {_MEMBER_FAILS}")
NO_CANARY = Edit(
    VITALS,
    "        checks = self.checks if self._has_api else Checks(",
    "        checks = Checks(",
)
NO_PROOF_IS_FINE = Edit(LIVENESS, "    if without >= limit - 1e-6:\n", "    if without >= 1e9:\n")
PROOF_NOT_BELIEVED = Edit(LIVENESS, "    if event.alive:\n", "    if False:\n")
FLAT_MEANS_NOTHING = Edit(
    LIVENESS,
    'if life.devices == "flat" and life.flat_samples >= hang.max_failure_count\n    ]',
    "if False\n    ]",
)
LATE_IS_HUNG = Edit(
    LIVENESS,
    "        suspect, reason, look_again = judge(s, scope, gang, late)\n",
    '        suspect, reason, look_again = master, "hung: the canary is late", None\n',
)
IMPATIENT_CANARY = Edit(
    CANARY,
    "        return now - since > self.deadline\n",
    "        return now - since > (0.3 if self.warm else self.deadline)\n",
)
ONE_ANSWER_MISSING = Edit(LINK, "MISSED_ACKS = 3\n", "MISSED_ACKS = 1\n")
SHIM_NEVER_KILLS = Edit(
    SHIM,
    "        if self.kill_at is not None and now >= self.kill_at and self.next_sweep is None:\n",
    "        if False:\n",
)
NOBODY_ADOPTS = Edit(
    MANAGER,
    "        for record, folder in newest.values():\n",
    "        for record, folder in list(newest.values())[:0]:\n",
)
SHIM_NOT_MISSED = Edit(SUPERVISOR, "            elif not living and (", "            elif False and (")
LOST_SIGHT_IS_FAILURE = Edit(
    MEMBERSHIP,
    "        scope.away.add(slot)\n        assembly.update_completeness(s, scope)\n        if scope.phase",
    "        scope.away.add(slot)\n        assembly.update_completeness(s, scope)\n"
    "        stopping.fail(s, scope, slot, event.node_id, 'out of sight', None)\n        if scope.phase",
)
NOBODY_CLEANS = Edit(
    ASSEMBLY,
    '    s.emit(SendStop(node.offer.node_id, slot, generation, "failure", reason, s.plan.timers.stop_grace))\n',
    "",
)
HOLDINGS_UNTOLD = Edit(MANAGER, "            holdings=[one.report() for one in self.slots.values()],\n", "")


MUTATIONS: tuple[Mutation, ...] = (
    # -- killed --------------------------------------------------------------------------------------------------
    Mutation(
        "Killed: engine of the master",
        (f"{KILLS}test_engine[master]",),
        "the end of an engine counts as a failure",
        "for the failure of group 0 to be seen",
        (NO_END_COUNTS,),
    ),
    Mutation(
        "Killed: engine of a follower",
        (f"{KILLS}test_engine[follower]",),
        "the other members are told to stop, at once or after the first end",
        "for a next generation",
        (
            Edit(
                STOPPING,
                "        for other in sorted(scope.unstopped - scope.stop_told):\n",
                "        for other in ():\n",
            ),
            Edit(
                STOPPING,
                "    first = scope.unstopped\n",
                "    first = scope.unstopped if scope.evidence is None else {scope.evidence.slot} & scope.unstopped\n",
            ),
        ),
    ),
    Mutation(
        "Killed: one worker of the master",
        (f"{KILLS}test_worker[master]",),
        "an exit with 0 counts as a failure",
        "for the failure of group 0 to be seen",
        (EXIT_0_IS_FINE,),
    ),
    Mutation(
        "Killed: one worker of a follower",
        (f"{KILLS}test_worker[follower]",),
        "an exit with 0 counts as a failure",
        "is blamed",  # the canary finds it seconds later, and another rank is the flat one
        (EXIT_0_IS_FINE,),
    ),
    Mutation(
        "Killed: both engines of a gang",
        (f"{KILLS}test_both_engines_of_a_gang",),
        "a failure in a gang that is stopping belongs to the same restart",
        "one fault, one restart",
        (
            Edit(
                STOPPING,
                "    if scope.phase is Phase.STOPPING:\n        if report.state is MemberState.STOPPED:\n",
                "    if scope.phase is Phase.STOPPING:\n        if report.state is MemberState.FAILED:\n"
                "            scope.restart_times.append(s.now)\n        if report.state is MemberState.STOPPED:\n",
            ),
        ),
    ),
    Mutation(
        "Killed: manager",
        (f"{KILLS}test_manager[master]", f"{KILLS}test_manager[follower]"),
        "a manager adopts what an earlier one started",
        RESTARTED,
        (NOBODY_ADOPTS,),
    ),
    Mutation(
        "Killed: manager, then its engine",
        (f"{KILLS}test_manager_and_then_its_engine",),
        "the shim writes down how the engine ended",
        'last_failure"]["exit_signal"]',
        (
            Edit(
                SHIM,
                "            write_json(STATUS_FILE, self.status)\n            self.unsaved = False\n",
                "            if not self.main_ended:\n"
                "                write_json(STATUS_FILE, self.status)\n            self.unsaved = False\n",
            ),
        ),
    ),
    Mutation(
        "Killed: shim",
        (f"{KILLS}test_shim[master]", f"{KILLS}test_shim[follower]"),
        "a manager notices that a shim is gone",
        # the canary may find the hang, but nobody confirms that the engine ended
        ("for the failure of group 0 to be seen", "for a next generation"),
        (SHIM_NOT_MISSED,),
    ),
    Mutation(
        "Killed: controller",
        (f"{KILLS}test_controller",),
        "nodes tell what they hold when they register",
        "generation",
        (HOLDINGS_UNTOLD,),
    ),
    Mutation(
        "Killed: controller",
        (f"{KILLS}test_controller",),
        "the store is read, and what nodes hold without a record is adopted",
        "for everything to be ready and in sight",
        (
            Edit(SERVICE, "snapshot.lineage, snapshot.records,", "snapshot.lineage, (),"),
            Edit(ADOPTION, "    if len(scope.claims) == len(scope.members):\n        _adopt(s, scope)\n", ""),
        ),
    ),
    Mutation(
        "Killed: controller and an engine together",
        (f"{KILLS}test_controller_and_then_an_engine",),
        "an end that is told at registration counts for a generation from the store",
        "for a next generation",
        (
            Edit(
                MEMBERSHIP,
                "    if report.state in ENDED:\n        stopping.member_ended",
                "    if report.state in ENDED and not scope.recovered:\n        stopping.member_ended",
            ),
        ),
    ),
    Mutation(
        "Killed: 30 at random, and pairs of them",
        ("tests/faults/test_soak.py::test_random_kills",),
        "a manager adopts what an earlier one started",
        RESTARTED,
        (NOBODY_ADOPTS,),
        env=(("SEED", "7"), ("KILLS", "20")),
    ),
    # -- frozen --------------------------------------------------------------------------------------------------
    Mutation(
        "Frozen: one worker, `/health` is 200",
        (f"{FREEZES}test_worker[master]", f"{FREEZES}test_worker[follower]"),
        "the canary",
        "for the failure of group 0 to be seen",
        (NO_CANARY,),
    ),
    Mutation(
        "Frozen: engine (API server) of the master",
        (f"{FREEZES}test_engine_of_the_master",),
        "a late canary and a flat rank are a hang",
        "for the failure of group 0 to be seen",
        (FLAT_MEANS_NOTHING,),
    ),
    Mutation(
        "Frozen: headless parent of a follower",
        (f"{FREEZES}test_engine_of_a_follower",),
        "workers are counted whether or not their parent runs",
        "for everything to be ready and in sight",
        (
            Edit(
                "nodemanager/workers.py",
                "        children = engine.children(recursive=True)\n",
                "        frozen = engine.status() == psutil.STATUS_STOPPED\n"
                "        children = [] if frozen else engine.children(recursive=True)\n",
            ),
        ),
    ),
    Mutation(
        "Frozen: ... and then the master dies",
        (f"{FREEZES}test_engine_of_a_follower",),
        "the shim sends SIGKILL after the grace",
        "for a next generation",
        (SHIM_NEVER_KILLS,),
    ),
    Mutation(
        "Frozen: manager, longer than node timeout + canary deadline",
        (f"{FREEZES}test_manager[master]", f"{FREEZES}test_manager[follower]"),
        "proof of life is believed",
        RESTARTED,
        (PROOF_NOT_BELIEVED,),
    ),
    Mutation(
        "Frozen: manager, and its engine dies",
        (f"{FREEZES}test_manager_while_its_engine_ends",),
        "no proof of life and a late canary are failures",
        "for the failure of group 0 to be seen",
        (NO_PROOF_IS_FINE, NO_CANARY),
    ),
    Mutation(
        "Frozen: manager, and its engine dies",
        (f"{FREEZES}test_manager_while_its_engine_ends",),
        "what an older generation left on a node is stopped when it is back",
        "for everything to be ready and in sight",
        (NOBODY_CLEANS,),
    ),
    Mutation(
        "Frozen: shim",
        (f"{FREEZES}test_shim",),
        "a shim that is frozen is left alone while its engine runs",
        RESTARTED,
        (
            Edit(
                UNREPORTED_END,
                '        if runs or status.get("state") != "running":\n',
                '        shim = process_stat(int(status.get("shim_pid") or 0))\n'
                '        if (runs and shim is not None and shim[2] != "T") or status.get("state") != "running":\n',
            ),
        ),
    ),
    Mutation(
        "Frozen: shim, and its engine dies",
        (f"{FREEZES}test_shim_while_its_engine_ends",),
        "a manager looks whether the engine is over beside what its shim says, and the canary",
        "for the failure of group 0 to be seen",
        (Edit(SUPERVISOR, "            self._end_silent_shim()\n", ""), NO_CANARY),
    ),
    Mutation(
        "Frozen: controller, longer than the node timeout",
        (f"{FREEZES}test_controller",),
        "a node gives a controller up that does not answer its heartbeats",
        "to give the controller up",
        (Edit(LINK, "            if silent > MISSED_ACKS * interval + interval / 2:\n", "            if False:\n"),),
    ),
    Mutation(
        "Frozen: controller, longer than the node timeout",
        (f"{FREEZES}test_controller",),
        "losing sight of a node is no failure",
        RESTARTED,
        (LOST_SIGHT_IS_FAILURE,),
    ),
    Mutation(
        "Frozen: nothing: one step of 2.5 canary deadlines on busy devices",
        (f"{FREEZES}test_a_busy_gang_is_not_a_hung_one",),
        "a late canary alone is no hang",
        "the long request is answered",
        (LATE_IS_HUNG,),
    ),
    # -- links ---------------------------------------------------------------------------------------------------
    Mutation(
        "Links: cable out for half a node timeout, follower or master",
        (f"{LINKS}test_short_cut[master]",),
        "a node waits for three answers, and losing sight of it is no failure",
        (*RESTARTED, UNANSWERED),
        (ONE_ANSWER_MISSING, LOST_SIGHT_IS_FAILURE),
    ),
    Mutation(
        "Links: cable out for half a node timeout, follower or master",
        (f"{LINKS}test_short_cut[follower]",),
        "the canary's deadline, and a late canary alone is no hang",
        (*RESTARTED, UNANSWERED),
        (IMPATIENT_CANARY, LATE_IS_HUNG),
    ),
    Mutation(
        "Links: cable of the master out",
        (f"{LINKS}test_long_cut[master]",),
        "no proof of life is a failure",
        "for the failure of group 0 to be seen",
        (NO_PROOF_IS_FINE,),
    ),
    Mutation(
        "Links: cable of the master out",
        (f"{LINKS}test_long_cut[master]",),
        "what an older generation left on a node is stopped when it is back",
        "to be clean and a spare",
        (NOBODY_CLEANS,),
    ),
    Mutation(
        "Links: cable of a follower out",
        (f"{LINKS}test_long_cut[follower]",),
        "no proof of life and a late canary are failures",
        "for the failure of group 0 to be seen",
        (NO_PROOF_IS_FINE, NO_CANARY),
    ),
    Mutation(
        "Links: a follower hears nobody (one way)",
        (f"{LINKS}test_one_way_cut[to_node]",),
        "a gang without a rank is proved dead by its others",
        "for a next generation",
        (
            Edit(
                STOPPING,
                "        silent.append(slot)\n    if silent and proofs == 0:\n",
                "        silent.append(slot)\n    if silent:\n",
            ),
        ),
    ),
    Mutation(
        "Links: a follower is not heard (one way)",
        (f"{LINKS}test_one_way_cut[from_node]",),
        "the slot of a lost node is vacated",
        "for a next generation",
        (
            Edit(
                STOPPING,
                '            placement.unseat(s, scope, slot, "lost", f"node {node.offer.node_id} {how}")\n',
                "            s.say(str(slot), 'lost', how)\n",
            ),
        ),
    ),
    Mutation(
        "Links: one-way cut for half a node timeout",
        (f"{LINKS}test_short_one_way_cut",),
        "a node waits for three answers, and losing sight of it is no failure",
        (*RESTARTED, UNANSWERED),  # it may be noticed late: a node that gets no acknowledgements cannot say much
        (ONE_ANSWER_MISSING, LOST_SIGHT_IS_FAILURE),
    ),
    Mutation(
        "Links: 30 % loss both ways between the controller and the master's node, starting and serving",
        (f"{LINKS}test_lossy_link",),
        "the node timeout, and losing sight of a node in start-up is no failure",
        ("no restart was used up", "for every instance to be ready", "the gang serves"),
        (
            Edit(SESSIONS, "timers.node_timeout - silent", "timers.node_timeout / 10 - silent"),
            LOST_SIGHT_IS_FAILURE,
        ),
    ),
    Mutation(
        "Links: only the way to the controller is cut",
        (
            f"{UNREACHABLE}test_a_serving_gang_with_one_node_out_of_sight_stays[follower]",
            f"{UNREACHABLE}test_a_serving_gang_with_one_node_out_of_sight_stays[master]",
        ),
        "proof of life is believed",
        "proof of life",
        (PROOF_NOT_BELIEVED,),
    ),
    Mutation(
        "Links: only the way to the controller is cut",
        (f"{UNREACHABLE}test_a_serving_gang_that_is_out_of_sight_as_a_whole_stays",),
        "with nobody in sight nothing is done",
        "the controller's own question",
        (Edit(LIVENESS, "    if all(slot in scope.away for slot in gang):\n", "    if False:\n"),),
    ),
    Mutation(
        "Links: only the way to the controller is cut",
        (f"{UNREACHABLE}test_a_loading_gang_waits_for_a_node_out_of_sight",),
        "losing sight of a node is no failure",
        "assert",
        (LOST_SIGHT_IS_FAILURE,),
    ),
    Mutation(
        "Links: only the way to the controller is cut",
        (f"{UNREACHABLE}test_a_loading_gang_does_not_wait_for_ever",),
        "a gang in start-up waits for a node out of sight, and not for ever",
        "for the next generation",
        (
            Edit(
                MEMBERSHIP,
                "        if s.now - node.unreachable_since >= grace - 1e-6:\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutation(
        "Links: only the way to the controller is cut",
        (f"{UNREACHABLE}test_with_self_fence_a_lost_gang_is_replaced_and_never_runs_twice",),
        "a node with self_fence ends its engines by itself",
        "the old engines were gone before the new ones started",
        (
            Edit(
                "nodemanager/lease.py",
                "    if not self_fence:\n        return Lease(",
                "    if True:\n        return Lease(",
            ),
        ),
    ),
    # -- starts --------------------------------------------------------------------------------------------------
    Mutation(
        "Starts: port held by a stranger before prepare",
        ("tests/cluster/test_orders_and_stores.py::test_a_strangers_port_means_the_next_port_and_is_named",),
        "prepare looks at the ports",
        "every instance to be ready",
        (
            Edit(
                PREPARE,
                "        taken = await in_thread(taken_ports, wanted, address)\n",
                "        taken: dict[int, str] = {}\n",
            ),
        ),
    ),
    Mutation(
        "Starts: port taken between prepare and start",
        (f"{STARTING}test_port_taken_between_prepare_and_start",),
        "the engine's word about a taken port is understood",
        'failure_class"] == "port"',
        (
            Edit(
                "engine_launch/log_patterns.py",
                'PORT_TAKEN_LINE = r"EADDRINUSE|[Aa]ddress already in use"',
                'PORT_TAKEN_LINE = r"no engine prints this"',
            ),
        ),
    ),
    Mutation(
        "Starts: model folder vanishes",
        (f"{STARTING}test_model_vanishes_and_a_spare_has_it",),
        "prepare looks for the model",
        "for the spare",
        (Edit(PREPARE, 'Item("model", model.ok, model.detail)', 'Item("model", True, model.detail)'),),
    ),
    Mutation(
        "Starts: model on a hung mount (FIFO), no spare",
        (f"{STARTING}test_model_that_blocks_and_nobody_else",),
        "the look at the model has a limit",
        "for the refusal",
        (
            Edit(
                "nodemanager/model_check.py",
                "        found = await _look(candidate, roots, seconds)\n",
                "        found = await _look(candidate, roots, 1e6)\n",
            ),
        ),
    ),
    Mutation(
        "Starts: start hangs in configuration, rendezvous or weights",
        (f"{STARTING}test_start_that_never_gets_ready",),
        "the limit of the stages before the rendezvous",
        "for the limit of stage engine",
        (
            Edit(
                STAGE_LIMITS,
                '        return timers.configuration_limit, stage_seconds, f"in stage',
                '        return 1e9, stage_seconds, f"in stage',
            ),
        ),
    ),
    Mutation(
        "Starts: start hangs in configuration, rendezvous or weights",
        (f"{STARTING}test_start_that_never_gets_ready",),
        "the limit of the rendezvous",
        "for the limit of stage rendezvous",
        (
            Edit(
                STAGE_LIMITS,
                "        return timers.rendezvous_limit, stage_seconds",
                "        return 1e9, stage_seconds",
            ),
        ),
    ),
    Mutation(
        "Starts: start hangs in configuration, rendezvous or weights",
        (f"{STARTING}test_start_that_never_gets_ready",),
        "the limit of loading without progress",
        "for the limit of stage weights",
        (
            Edit(
                STAGE_LIMITS,
                "    return timers.load_idle_limit, report.idle_seconds",
                "    return 1e9, report.idle_seconds",
            ),
        ),
    ),
    Mutation(
        "Starts: engine deaf to SIGTERM",
        (f"{STARTING}test_sigterm_deaf_engines",),
        "the shim sends SIGKILL after the grace",
        "for a next generation",
        (SHIM_NEVER_KILLS,),
    ),
    # -- disks and clocks ----------------------------------------------------------------------------------------
    Mutation(
        "Disks: full disk under a node's state and logs",
        ("tests/faults/test_disks.py::test_full_disk_of_a_node",),
        "looking after a running engine writes nothing",
        (*RESTARTED, UNANSWERED),
        (
            Edit(
                SUPERVISOR,
                "                await self.readiness.look(self.pid, loading=self.state == LOADING)\n",
                "                await self.readiness.look(self.pid, loading=self.state == LOADING)\n"
                "                with (self.folder / 'looked').open('ab') as file:\n"
                "                    file.write(bytes(8192))\n",
            ),
        ),
    ),
    Mutation(
        "Disks: ... and its engine dies",
        ("tests/faults/test_disks.py::test_full_disk_of_a_node",),
        "the shim confirms only what is on the disk, and stays until it is",
        ("for the node to be named", "it waits for the disk"),
        (
            Edit(SHIM, "            return not self.unsaved\n", "            return True\n"),
            Edit(
                SHIM,
                "                self.save()\n                if not self.unsaved:\n"
                '                    self.push("reaped")\n            elif',
                '                self.save()\n                self.push("reaped")\n            elif',
            ),
        ),
    ),
    Mutation(
        "Disks: full disk under the store",
        ("tests/cluster/test_full_disk.py::test_full_disk_keeps_engines_and_goes_on_when_space_is_back",),
        "a generation is started only when its record is stored",
        "the reason of the group that waits",
        (
            Edit(
                SERVICE,
                "                if not self.store_error:\n                    self.feed(e.RecordStored",
                "                if True:\n                    self.feed(e.RecordStored",
            ),
        ),
    ),
    Mutation(
        "Disks: wall clock of a manager jumps by an hour, both ways",
        (f"{CLOCKS}test_managers_clock",),
        "the link counts on the monotonic clock",
        "nobody went out of sight",
        (wall_clock_in(LINK),),
    ),
    Mutation(
        "Disks: ... and a start is due there",
        (f"{CLOCKS}test_managers_clock",),
        "prepare compares the clocks",
        "for the refusal",
        (Edit("nodemanager/machine_checks.py", "    if abs(skew) > limits.clock_skew:\n", "    if False:\n"),),
    ),
    Mutation(
        "Disks: wall clock of the controller jumps, both ways",
        (f"{CLOCKS}test_controllers_clock",),
        "the controller counts on the monotonic clock",
        ("nobody went out of sight", "for a next generation"),
        (Edit(SERVICE, "clock: Callable[[], float] = time.monotonic", "clock: Callable[[], float] = time.time"),),
    ),
    # -- several controllers -----------------------------------------------------------------------------------------
    *CONTROLLERS,
)
