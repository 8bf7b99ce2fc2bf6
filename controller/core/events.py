"""What can happen to a deployment. Every event brings its own time and randomness; the core has neither.

`now` is in seconds of the shell's monotonic clock. `nonce` is fresh random text from the shell: run ids and jitter
are derived from it, so a recorded run of events replays exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from controller.core.model import MemberReport, NodeOffer, SlotKey


@dataclass(frozen=True)
class Event:
    now: float
    nonce: str


@dataclass(frozen=True)
class NodeRegistered(Event):
    """A node opened a stream and said who it is. `session` names the stream."""

    session: str
    deployment_id: str
    offer: NodeOffer
    holdings: tuple[MemberReport, ...] = ()
    seen: tuple[tuple[SlotKey, int], ...] = ()  # newest generation the node has ever obeyed, by slot
    remarks: tuple[tuple[str, str], ...] = ()  # (instance, sentence) worth a line of the story, told once


@dataclass(frozen=True)
class NodeDisconnected(Event):
    """A node's stream ended or its heartbeat deadline passed."""

    session: str
    node_id: str
    cause: str


@dataclass(frozen=True)
class MemberReported(Event):
    """A node reports a change of one engine."""

    session: str
    node_id: str
    report: MemberReport


@dataclass(frozen=True)
class PrepareItem:
    name: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class PrepareReported(Event):
    """A node answers a prepare command."""

    session: str
    node_id: str
    slot: SlotKey
    generation: int
    ok: bool
    items: tuple[PrepareItem, ...] = ()
    model_digest: str = ""
    engine_version: str = ""
    driver_version: str = ""
    toolkit_version: str = ""  # CANN's, on Ascend
    taken_ports: tuple[int, ...] = ()  # held by something that is not ours

    def only_ports(self) -> bool:
        """True where other ports are all that is needed."""
        return bool(self.taken_ports) and {item.name for item in self.items if not item.ok} <= {"ports", "master"}

    def refusal(self) -> str:
        """The failed items in one sentence."""
        return "; ".join(f"{item.name}: {item.detail}" for item in self.items if not item.ok) or "refused"


@dataclass(frozen=True)
class CommandRefused(Event):
    """A node will not obey, because it has seen something newer or may not run what it was told."""

    session: str
    node_id: str
    slot: SlotKey
    generation: int
    command: str
    code: str
    reason: str
    newest_epoch: int = 0
    newest_generation: int = 0


@dataclass(frozen=True)
class RecordStored(Event):
    """The store has confirmed a generation's record."""

    scope_id: str
    generation: int


@dataclass(frozen=True)
class RecordNotStored(Event):
    """The store could not keep a record; nothing may be started from it."""

    scope_id: str
    generation: int
    error: str


@dataclass(frozen=True)
class ProofOfLife(Event):
    """The answer to AskProofOfLife: whether the API server answered a canary."""

    scope_id: str
    generation: int
    slot: SlotKey
    alive: bool
    detail: str


@dataclass(frozen=True)
class OperatorOrdered(Event):
    """An operator's word: pause, resume, cordon, uncordon, drain, declare-lost, clean (of a node); restart, stop,
    start (of an instance or a group). Answered by an OperatorAnswer."""

    order: str
    target: str = ""
    reason: str = ""


@dataclass(frozen=True)
class DeadlinePassed(Event):
    """The time named by `Core.next_deadline()` has come."""


@dataclass(frozen=True)
class StoryLine:
    """One decision, for people: shown by status, kept in the event list."""

    sequence: int
    at: float
    subject: str  # "prefill-0", "prefill-0/1", "prefill-0/1/0" or "node n1"
    code: str
    sentence: str
    fields: dict[str, str] = field(default_factory=dict)
