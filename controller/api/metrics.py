"""Prometheus metrics, computed from the state when asked for."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.core import status
from controller.core.state import CoreState, Phase


def render_metrics(
    s: CoreState, now: float, certificate_ends: float | None = None, first_node_ends: float | None = None
) -> tuple[bytes, str]:
    """Body and content type of /metrics. `certificate_ends`, `first_node_ends`: Unix time; None without TLS."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StateCollector(s, now))
    registry.register(_CertificateCollector(certificate_ends, first_node_ends))
    return generate_latest(registry), CONTENT_TYPE_LATEST


LEADER = ("motor_controller_leader", "1 on the controller that leads, 0 on a standby.")


def render_standby() -> bytes:
    """Body of /metrics of a controller that does not lead: it knows nothing of nodes and groups."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Standby())
    return generate_latest(registry)


class _Standby(Collector):
    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(*LEADER, 0)


class _CertificateCollector(Collector):
    def __init__(self, own: float | None, first_of_nodes: float | None) -> None:
        self._own, self._first_of_nodes = own, first_of_nodes

    def collect(self) -> Iterator[Metric]:
        if self._own is not None:
            yield GaugeMetricFamily(
                "motor_certificate_not_after_seconds",
                "When the controller's certificate ends, in Unix time.",
                self._own,
            )
        if self._first_of_nodes is not None:
            yield GaugeMetricFamily(
                "motor_node_certificate_not_after_seconds",
                "When the first of the connected nodes' certificates ends, in Unix time.",
                self._first_of_nodes,
            )


class _StateCollector(Collector):
    def __init__(self, s: CoreState, now: float) -> None:
        self._state = s
        self._now = now

    def collect(self) -> Iterator[Metric]:
        s = self._state
        yield GaugeMetricFamily(*LEADER, 1)
        yield GaugeMetricFamily("motor_controller_epoch", "Epoch of this controller.", s.epoch)
        nodes = GaugeMetricFamily("motor_nodes", "Nodes by state.", labels=["state"])
        counts = dict.fromkeys(("assigned", "spare", "cleaning", "rejected", "unreachable", "lost"), 0)
        for node in s.nodes.values():
            state = status.node_state(s, node, self._now)
            counts[state] = counts.get(state, 0) + 1
        for state, count in counts.items():
            nodes.add_metric([state], count)
        yield nodes
        wanted = GaugeMetricFamily("motor_instance_slots", "Slots an instance needs.", labels=["instance", "role"])
        missing = GaugeMetricFamily(
            "motor_instance_slots_missing", "Slots without a live node.", labels=["instance", "role"]
        )
        generation = GaugeMetricFamily("motor_instance_generation", "Newest generation.", labels=["instance", "role"])
        phases = GaugeMetricFamily(
            "motor_scope_phase", "1 for the phase a restart scope is in.", labels=["scope", "phase"]
        )
        since = GaugeMetricFamily("motor_scope_phase_seconds", "Time in the present phase.", labels=["scope"])
        restarts = GaugeMetricFamily(
            "motor_scope_restarts", "Restarts used since the last stable run.", labels=["scope"]
        )
        for instance in s.instances.values():
            labels = [instance.plan.name, instance.plan.role]
            wanted.add_metric(labels, instance.plan.dp_size * instance.plan.nnodes)
            scopes = instance.scopes.values()
            missing.add_metric(labels, sum(len(scope.vacant) + len(scope.away) for scope in scopes))
            generation.add_metric(labels, instance.generation)
            for scope in scopes:
                for phase in Phase:
                    phases.add_metric([scope.scope_id, phase.value], float(scope.phase is phase))
                since.add_metric([scope.scope_id], self._now - scope.since)
                restarts.add_metric([scope.scope_id], scope.restarts)
        yield from (wanted, missing, generation, phases, since, restarts)
        yield CounterMetricFamily("motor_events", "Decisions recorded since the start.", s.story_count)
