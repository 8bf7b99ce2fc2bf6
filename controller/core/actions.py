"""What the core wants done. The shell around it does it and brings the outcome back as an event."""

from __future__ import annotations

from dataclasses import dataclass

from controller.core.model import GenerationRecord, OperatorState, Placement, SlotKey


@dataclass(frozen=True)
class Action:
    pass


@dataclass(frozen=True)
class AcceptNode(Action):
    session: str
    node_id: str


@dataclass(frozen=True)
class RefuseNode(Action):
    """Answer a registration with a reason and end the stream."""

    session: str
    code: str
    reason: str
    retry: bool


@dataclass(frozen=True)
class CloseSession(Action):
    """End a stream that a newer one of the same node has replaced."""

    session: str
    reason: str


@dataclass(frozen=True)
class TellPlacement(Action):
    node_id: str
    state: str  # assigned | spare | cleaning | rejected
    reason: str
    slots: tuple[SlotKey, ...]


@dataclass(frozen=True)
class StoreRecord(Action):
    """Keep a generation's record; answered by RecordStored or RecordNotStored."""

    record: GenerationRecord


@dataclass(frozen=True)
class StoreOperatorState(Action):
    """Keep what operators have ordered. It is in force at once; a failed write is said, not undone."""

    operator: OperatorState


@dataclass(frozen=True)
class OperatorAnswer(Action):
    """What an operator is told: done, or why not."""

    ok: bool
    sentence: str


@dataclass(frozen=True)
class AskProofOfLife(Action):
    """Send one canary to an API server by a path that does not need its own node's stream; answered by ProofOfLife."""

    scope_id: str
    slot: SlotKey  # the API server's
    generation: int
    host: str
    port: int
    via_node: str  # a connected member's node; "" = the controller itself
    deadline: float  # seconds


@dataclass(frozen=True)
class MemberCommand(Action):
    """A command about one slot's engine, to the node that fills the slot."""

    node_id: str
    slot: SlotKey
    generation: int


@dataclass(frozen=True)
class SendPrepare(MemberCommand):
    run_id: str
    config_digest: str
    placement: Placement
    is_world_master: bool
    deadline_seconds: float


@dataclass(frozen=True)
class SendRelease(MemberCommand):
    reason: str


@dataclass(frozen=True)
class SendStart(MemberCommand):
    run_id: str
    config_digest: str
    placement: Placement


@dataclass(frozen=True)
class SendStop(MemberCommand):
    mode: str  # planned | failure
    reason: str
    grace_seconds: float


@dataclass(frozen=True)
class SendGroupReady(MemberCommand):
    ready: bool


@dataclass(frozen=True)
class SendForget(MemberCommand):
    """The end of this generation is recorded; the node may drop its evidence."""
