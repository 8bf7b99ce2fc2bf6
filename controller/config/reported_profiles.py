"""The file under the engine profile that a node reports, where the file itself pins none.

The plan is made before any node has spoken, with an assumed profile. What nodes really have is tried once: the same
document with that profile pinned. Where it is valid and gives the same plan, engines get the command lines of the real
profile; where not, the node is told why it cannot take part.

Prefill and decode are tried one at a time, the other as it was assumed. That is enough while no rule over the pair
looks at a profile: a test compares it with all pairs.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock

from controller.config.errors import ConfigError
from controller.config.load import Document
from controller.config.plan import LoadedDeployment, deployment_from
from controller.config.vocabulary import ENGINE_SECTIONS
from controller.core.model import InstancePlan, NodeOffer
from engine_launch.model import EngineSpec
from engine_launch.profiles import UnknownProfile, resolve

SECTIONS = {role: section for section, role in ENGINE_SECTIONS.items()}
READABLE = re.compile(r"[a-z_-]+@\d+\.\d+")  # a version with numbers; a build that calls itself `dev` says nothing

Remarks = tuple[tuple[str, str], ...]  # (instance, sentence)


@dataclass(frozen=True)
class Trial:
    """What came of one profile: the engines of the section's instances, or why it does not work."""

    engines: Mapping[str, EngineSpec] = field(default_factory=dict)
    obstacle: str = ""
    remarks: tuple[str, ...] = ()


class ReportedProfiles:
    """Tries each (section, profile) once. Safe to call from several threads."""

    def __init__(self, deployment: LoadedDeployment) -> None:
        self._deployment = deployment
        self._trials: dict[tuple[str, str], Trial] = {}
        self._lock = Lock()
        self._assumed: dict[str, list[InstancePlan]] = {}  # by section: the instances without a pinned profile
        for plan in deployment.plan.instances:
            if not plan.engine_versions:
                self._assumed.setdefault(SECTIONS[plan.role], []).append(plan)

    def is_known(self, offer: NodeOffer) -> bool:
        """True where `judge` only looks up: nothing is read or checked."""
        return all(
            not (profile := _readable(offer, plans[0])) or (section, profile) in self._trials
            for section, plans in self._assumed.items()
        )

    def judge(self, offer: NodeOffer) -> tuple[NodeOffer, Remarks]:
        """The offer with its obstacles, and what is worth telling, each thing once. May read files of the model."""
        obstacles: dict[str, str] = {}
        remarks: list[tuple[str, str]] = []
        for section, plans in self._assumed.items():
            profile = _readable(offer, plans[0])
            if not profile:
                continue
            trial, fresh = self._try(section, profile)
            if trial.obstacle:
                obstacles |= {plan.name: trial.obstacle for plan in plans}
            if fresh:
                remarks += [(plans[0].name, remark) for remark in trial.remarks]
        return dataclasses.replace(offer, obstacles=obstacles) if obstacles else offer, tuple(remarks)

    def engine(self, instance: str, offer: NodeOffer | None) -> EngineSpec:
        """The engine of this instance as a node with this offer runs it."""
        plan = self._deployment.plan.instance(instance)
        assumed = self._deployment.engines[instance]
        if offer is None or plan.engine_versions:
            return assumed
        trial = self._trials.get((SECTIONS[plan.role], _readable(offer, plan)))
        return trial.engines.get(instance, assumed) if trial else assumed

    def _try(self, section: str, profile: str) -> tuple[Trial, bool]:
        """The trial, and whether it was made just now."""
        with self._lock:
            known = self._trials.get((section, profile))
            if known is not None:
                return known, False
            trial = try_profile(self._deployment, section, profile)
            self._trials[section, profile] = trial
            return trial, True


def _readable(offer: NodeOffer, plan: InstancePlan) -> str:
    """The profile that counts for this instance, without the last digits that no profile looks at; empty if unknown."""
    profile = offer.profiles.get(plan.engine, "")
    if not READABLE.match(profile):
        return ""
    try:
        return resolve(profile).name
    except UnknownProfile:
        return profile


def try_profile(deployment: LoadedDeployment, section: str, profile: str) -> Trial:
    """Load the deployment's document again with `profile` pinned in `section`. Never raises for a bad file."""
    names = [plan.name for plan in deployment.plan.instances if SECTIONS[plan.role] == section]
    assumed = deployment.engines[names[0]].profile
    other_than = f"; the plan was made for {assumed}" if profile != assumed else ""
    try:
        resolve(profile)
        other = deployment_from(_pinned(deployment.document, section, profile))
    except UnknownProfile as error:
        return Trial(
            obstacle=f"the node has {profile}, which no profile of Motor fits ({error}); install another version"
        )
    except ConfigError as error:
        more = f" (and {len(error.errors) - 1} more)" if len(error.errors) > 1 else ""
        why = f"{error.errors[0]}{more}{other_than}"
        return Trial(obstacle=f"the node has {profile}, and the file does not work with that: {why}")
    if profile == assumed:  # tried all the same: what an assumption is only warned of is an error now
        return Trial({name: deployment.engines[name] for name in names})
    if difference := _difference(deployment, other, section):
        return Trial(
            obstacle=f"the plan was made for {assumed}, the node has {profile}, which makes another ({difference}); "
            f'set engine_profile to "{profile}" in {section}'
        )
    told_before = {(warning.path, warning.what) for warning in deployment.warnings}
    fresh = [str(warning) for warning in other.warnings if (warning.path, warning.what) not in told_before]
    remark = f"nodes have {profile}: they run its command lines instead of those of {assumed}, which was only assumed"
    return Trial({name: other.engines[name] for name in names}, remarks=(remark, *fresh))


def _pinned(document: Document, section: str, profile: str) -> Document:
    data = {**document.data, section: {**document.data[section], "engine_profile": profile}}
    return Document(document.file, data, document.lines)


def _difference(one: LoadedDeployment, other: LoadedDeployment, section: str) -> str:
    """What of the running plan would be another; empty if nodes, ports, ranks and other sections stay as they are."""
    for before, after in zip(one.plan.instances, other.plan.instances, strict=True):
        # These name the profile, or change with its being pinned.
        after = dataclasses.replace(
            after,
            config_digest=before.config_digest,
            engine_versions=before.engine_versions,
            engine_profile=before.engine_profile,
            profile_reason=before.profile_reason,
        )
        mine, its = one.engines[before.name], other.engines[before.name]
        if mine.translation != its.translation:
            return f"{before.name}: {its.translation.value} instead of {mine.translation.value}"
        if mine.shape != its.shape:
            return f"{before.name}: {its.shape} instead of {mine.shape}"
        if mine.kv != its.kv:
            return f"{before.name}: other ports or sizes of its KV transfer"
        if before != after:
            changed = [f.name for f in dataclasses.fields(before) if getattr(before, f.name) != getattr(after, f.name)]
            return f"{before.name}: {', '.join(changed)}"
        if SECTIONS[before.role] != section and mine != its:
            return f"{before.name}: another command line"
    return ""
