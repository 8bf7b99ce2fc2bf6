"""The shapes of REST answers, for the OpenAPI description. Values come from controller.core.status."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class Failure(BaseModel):
    slot: str
    node_id: str
    generation: int
    seconds_ago: float
    reason: str
    failure_class: str
    exit_code: int | None
    exit_signal: int | None
    last_log_lines: list[str]


class Member(BaseModel):
    slot: str = Field(description="instance/dp_rank/node_rank")
    node_rank: int
    headless: bool
    node_id: str
    address: str
    connected: bool
    devices: list[str]
    state: str = Field(description="vacant, none, prepared, starting, loading, ready, failed, stopping, stopped")
    stage: str = Field(description="how far the engine's start has come, from its own log")
    stage_seconds: float
    reason: str
    vacant_seconds: float
    canary: str = Field(description="off, waiting, ok, late; empty on headless members")
    canary_detail: str
    devices_activity: str = Field(description="flat, busy, busy_without_memory, unknown, with the reason")
    warning: str = Field(description="an early sign in the engine's own log")
    workers_seen: int
    workers_expected: int
    pid: int
    master_addr: str
    master_port: int
    api_port: int


class Group(BaseModel):
    dp_rank: int
    scope: str
    state: str = Field(description="assembling, storing, preparing, starting, ready, stopping, backoff, failed")
    since_seconds: float
    reason: str
    waiting_for: str = Field(description="what is missing, since when and why; empty when serving")
    generation: int
    run_id: str
    restarts: int
    max_restarts: int
    last_failure: Failure | None
    members: list[Member]


class Instance(BaseModel):
    name: str
    role: str
    model: str
    state: str
    ready_groups: int
    groups_total: int
    dp_size: int
    nnodes: int
    restart_scope: str
    engine_profile: str = Field(description="that of its nodes, or of deploy.json where it pins one")
    engine_profile_reason: str
    generation: int
    problems: list[str]
    groups: list[Group]


class ForeignEngine(BaseModel):
    slot: str
    generation: int
    state: str


class Node(BaseModel):
    node_id: str
    address: str
    hostname: str
    state: str = Field(description="assigned, spare, cleaning, rejected, unreachable, lost")
    since_seconds: float
    cordoned: bool
    reason: str
    role: str
    incarnation: int
    device_kind: str
    devices_total: int
    devices_leased: int
    engines: dict[str, str]
    labels: dict[str, str]
    slots: list[str]
    foreign: list[ForeignEngine]


class Omitted(BaseModel):
    """What `limit` has left out of a status."""

    instances: int
    groups: int
    nodes: int


class Status(BaseModel):
    deployment_id: str
    epoch: int
    ready: bool
    summary: str
    paused: str = Field(description="why no automatic action is taken; empty when it is")
    problems: list[str]
    node_counts: dict[str, int]
    instances: list[Instance]
    nodes: list[Node]
    omitted: Omitted
    store_error: str = Field(description="why the store cannot be written; empty when it can")
    stale_since: str = Field(
        description="wall clock, ISO 8601: this is what a controller knew when it ceased to lead, and none is known to "
        "lead since; empty: this is now"
    )
    stale_reason: str = Field(description="why it ceased to lead")
    uptime_seconds: float
    version: str


class Endpoint(BaseModel):
    """An API server that may be sent requests: a ready group's master."""

    instance: str
    role: str
    dp_rank: int
    model: str
    generation: int
    run_id: str
    node_id: str
    url: str


class Order(BaseModel):
    order: Literal[
        "pause", "resume", "cordon", "uncordon", "drain", "declare-lost", "clean", "restart", "stop", "start"
    ]
    target: str = Field("", description="a node_id, an instance, or a group such as prefill-0/1")
    reason: str = Field("", max_length=500, description="kept with the event")


class StepDown(BaseModel):
    reason: str = Field("", max_length=500, description="goes into the log")


class Answer(BaseModel):
    done: str


class EventLine(BaseModel):
    sequence: int
    at: str = Field(description="wall clock, ISO 8601, UTC")
    subject: str
    code: str
    sentence: str
    fields: dict[str, str]


class Events(BaseModel):
    events: list[EventLine]
    next_after: int = Field(description="pass as `after` to go on from here")


class Problem(BaseModel):
    """Every error: what was expected, what was got, what to do."""

    error: str
    fix: str = ""
    leader: str = Field("", description="on a standby: base URL of the controller that leads")
