"""Which profile goes with an engine: by name, by a node's reported version, or assumed when nothing says."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from dataclasses import dataclass

from engine_launch import atom, vllm, vllm_ascend
from engine_launch.profile import EngineProfile

PROFILES: dict[str, EngineProfile] = {
    profile.name: profile for profile in (*vllm.PROFILES, *vllm_ascend.PROFILES, *atom.PROFILES)
}

ENGINE_TYPES = ("vllm", "vllm_ascend", "atom")

# What is assumed without a node to ask. In the field's files PCP with `engine_type: vllm` means the plug-in.
ASSUMED_ASCEND = "vllm_ascend@0.23"
ASSUMED_VLLM = "vllm@0.33"
ASSUMED_ATOM = "atom@0.1.6"

_NAME = re.compile(r"^(?P<engine>[a-z][a-z_-]*)@(?P<major>\d+)\.(?P<minor>\d+)(?:\.(?P<patch>\d+))?(?P<rest>[.\w+-]*)$")


class UnknownProfile(ValueError):
    """No profile of that name; the text names what there is."""


@dataclass(frozen=True)
class ProfileChoice:
    """A profile, and why it is this one."""

    profile: EngineProfile
    assumed: bool  # neither the file nor a node said so
    reason: str  # one sentence without a full stop


@functools.lru_cache(maxsize=256)  # asked several times for each node and each command
def resolve(name: str) -> EngineProfile:
    """The profile called `engine@version`; `vllm@0.32.0` and `vllm-ascend@0.23` are accepted spellings.

    ATOM's profiles have three numbers, since all of its versions begin with 0.1. A version newer than any that is
    known works like the newest, with a note: engines seldom take flags away. UnknownProfile for the rest, older ones
    too: a flag that came later ends them.
    """
    match = _NAME.match(name)
    if not match:
        raise UnknownProfile(f"{name!r} is not engine@version; {_suggest(name)}")
    engine = match["engine"].replace("-", "_")
    of_engine = [profile for profile in PROFILES.values() if profile.engine == engine]
    numbers = [match["major"], match["minor"], match["patch"]]
    length = max((len(_version_key(profile)) for profile in of_engine), default=0)
    wanted = tuple(int(number) for number in numbers[:length] if number is not None)
    version = ".".join(map(str, wanted))
    if found := PROFILES.get(f"{engine}@{version}"):
        return found
    if of_engine:
        oldest = min(of_engine, key=_version_key)
        if len(wanted) == length and wanted < _version_key(oldest):
            raise UnknownProfile(
                f"{engine}@{version} is older than any version that Motor knows, and which flags it takes is not "
                f"known; {_known()}"
            )
        newest = max(of_engine, key=_version_key)
        if wanted > _version_key(newest):
            note = f"newer than any version that Motor knows: it is treated like {newest.name}"
            return dataclasses.replace(newest, version=version, notes=(*newest.notes, note))
    raise UnknownProfile(f"no engine profile {name!r}; {_suggest(name)}")


def choose(engine_type: str, pinned: str | None, pcp: int) -> ProfileChoice:
    """The profile for an engine section when no node has reported a version."""
    if pinned:
        return ProfileChoice(resolve(pinned), False, "engine_profile in the file")
    if engine_type == "atom":
        return ProfileChoice(PROFILES[ASSUMED_ATOM], True, "no engine_profile: the only ATOM that Motor knows")
    if engine_type == "vllm_ascend":
        return ProfileChoice(PROFILES[ASSUMED_ASCEND], True, "engine_type vllm_ascend without engine_profile")
    if pcp > 1:
        reason = "PCP > 1 with engine_type vllm and no engine_profile means vLLM-Ascend"
        return ProfileChoice(PROFILES[ASSUMED_ASCEND], True, reason)
    return ProfileChoice(PROFILES[ASSUMED_VLLM], True, "no engine_profile: the newest vLLM that Motor knows")


def takes_text_only(name: str) -> bool:
    """Whether completions of the engine of profile `name` take text and no token ids; False for an unknown one."""
    try:
        return resolve(name).text_prompts
    except UnknownProfile:
        return False


def known_names() -> list[str]:
    return list(PROFILES)


def _version_key(profile: EngineProfile) -> tuple[int, ...]:
    return tuple(int(part) for part in profile.version.split("."))


def _suggest(name: str) -> str:
    close = difflib.get_close_matches(name.replace("vllm-ascend", "vllm_ascend"), PROFILES, n=1, cutoff=0.6)
    return _known() + (f"; did you mean {close[0]!r}?" if close else "")


def _known() -> str:
    ranges = ", ".join(
        f"{engine}@{versions[0]}" + (f" to {versions[-1]}" if len(versions) > 1 else "")
        for engine in ENGINE_TYPES
        if (versions := [p.version for p in PROFILES.values() if p.engine == engine])
    )
    return f"known: {ranges}"
