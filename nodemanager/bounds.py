"""What a controller may make this node run: the engines of the node file, models below its roots, and nothing that
chooses code or files behind its back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from engine_launch.flag_list import load_flag_list
from engine_launch.guarded import (
    TRUST_REMOTE_CODE,
    guarded_env,
    guarded_flags,
    hub_names,
    is_path,
    model_paths,
    options_of,
)
from engine_launch.profile import EngineProfile
from nodemanager.config import NodeConfig
from nodemanager.file_child import FileError, real_paths


class OutOfBoundsError(Exception):
    """The command asks for what this node does not allow; the text says what, and which key of the node file would."""


def check_env(config: NodeConfig, env: Mapping[str, str]) -> None:
    """Names that the controller sets."""
    refused = guarded_env(env, config.allow_env)
    if refused:
        said = ", ".join(f"{name} ({why})" for name, why in refused.items())
        raise OutOfBoundsError(
            f"env sets {said}: only the node file may, in engines.<name>.env or env_scripts; `allow_env` there lets "
            "the controller set them"
        )


async def check_argv(config: NodeConfig, profile: EngineProfile, argv: Sequence[str]) -> None:
    """The whole canonical command, its model already a path of this node or the name of a hub's."""
    begins = profile.form.command
    if tuple(argv[: len(begins)]) != begins:
        raise OutOfBoundsError(
            f"argv: expected {' '.join(begins)} ..., got {' '.join(argv[: len(begins)]) or 'nothing'}"
        )
    known = load_flag_list(profile.flag_list).kinds
    refused = guarded_flags(argv, known, config.allow_flags)
    if refused:
        said = ", ".join(f"--{name} ({why})" for name, why in refused.items())
        raise OutOfBoundsError(f"argv has {said}: `allow_flags` of the node file lets the controller set them")
    paths, hub = model_paths(argv), hub_names(argv)
    if not profile.form.model_flag and len(argv) > len(begins):
        behind = ("model", argv[len(begins)])  # the model stands right behind the command
        (paths if is_path(behind[1]) else hub).append(behind)
    for name, path in paths:
        if not path.startswith("/"):
            raise OutOfBoundsError(f"{name}: expected an absolute path below model_roots, or a name, got {path!r}")
    if hub and _trusts(argv) and TRUST_REMOTE_CODE not in config.allow_flags:
        raise OutOfBoundsError(
            f"argv has --trust-remote-code, and {hub[0][0]} {hub[0][1]!r} is not below model_roots: whatever code a "
            "hub has under that name would run; put it there, or add trust-remote-code to `allow_flags`"
        )
    await check_below(paths, config.model_roots, config.limits.file_seconds)


def _trusts(argv: Sequence[str]) -> bool:
    """Also as an abbreviation, which argparse takes."""
    return any(len(name) > 2 and TRUST_REMOTE_CODE.startswith(name) for name, _ in options_of(argv))


async def check_below(paths: Sequence[tuple[str, str]], roots: Sequence[Path], seconds: float) -> None:
    """Every path lies below one of `roots` once links and `..` are followed. OutOfBoundsError names the first that does
    not."""
    if not paths:
        return
    try:
        real = await real_paths([*(path for _, path in paths), *map(str, roots)], seconds)
    except FileError as error:
        raise OutOfBoundsError(f"{paths[0][0]}: {error}") from error
    inside = [Path(root) for root in real[len(paths) :]]
    for (name, path), found in zip(paths, real, strict=False):
        if not any(Path(found).is_relative_to(root) for root in inside):
            leads = "" if found == path else f", which leads to {found},"
            raise OutOfBoundsError(
                f"{name}: {path}{leads} is not below model_roots ({', '.join(map(str, roots)) or 'none are set'}); "
                "put it there, or add its folder to `model_roots` of the node file"
            )
