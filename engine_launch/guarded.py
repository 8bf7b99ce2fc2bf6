"""What of an engine's command line and environment decides which code runs and which files are written.

A controller may not choose these on a node whose own file does not allow it. This is a bound, and no sandbox: an
engine is a large program, and more of its options may turn out to belong here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from engine_launch.flags import is_flag_like

_CLASS = "imports and runs a class by name"
_FILE = "runs a Python file"
_CONFIGURES = "a logging configuration can call any function"
_OPTIONS = "takes further options from a file, unseen by the node"
_WRITES = "writes to a place of its own choice"

# Option -> why. vLLM 0.32 (entrypoints/launchers/cli_args.py, engine/arg_utils.py; where each value is imported:
# v1/worker/worker_base.py:286-297, config/scheduler.py:253, v1/sample/logits_processor/__init__.py:139,
# tool_parsers/abstract_tool_parser.py:267, reasoning/abs_reasoning_parsers.py:261) and ATOM.
FLAGS: Mapping[str, str] = MappingProxyType(
    {
        "middleware": _CLASS,
        "worker-cls": _CLASS,
        "worker-extension-cls": _CLASS,
        "scheduler-cls": _CLASS,
        "logits-processors": _CLASS,
        "model-class-overrides": _CLASS,
        "io-processor-plugin": _CLASS,
        "tool-parser-plugin": _FILE,
        "reasoning-parser-plugin": _FILE,
        "log-config-file": _CONFIGURES,
        "logging-config": _CONFIGURES,
        "config": _OPTIONS,
        "download-dir": _WRITES,
        "torch-profiler-dir": _WRITES,
        "mm-encoder-fp8-scale-save-path": _WRITES,
        "uds": _WRITES,
    }
)

# Members of JSON values, such as kv_connector_module_path of --kv-transfer-config, and of dotted options.
_MEMBERS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r".*module[-_]path"), "imports a module by name"),
    (re.compile(r".*parser[-_]plugin"), _FILE),
    (re.compile(r"inductor[-_]passes"), _CLASS),
    (re.compile(r".*profiler[-_]dir|debug[-_]dump[-_]path"), _WRITES),
)

TRUST_REMOTE_CODE = "trust-remote-code"  # the code is the model's own: right below a model root, guarded from a hub

_MODELS = frozenset({"model", "tokenizer", "hf-config-path", "draft-model", "spec-model"})
# Options whose value may be a path that the engine reads as a model, an adapter or a template.
MODEL_FILES = frozenset(
    {
        "model", "tokenizer", "hf-config-path", "generation-config", "chat-template", "lora-modules",
        "default-mm-loras", "draft-model", "spec-model", "speculative-config", "mm-encoder-fp8-scale-path",
        "allowed-local-media-path",
    }
)  # fmt: skip

# Names -> why. Three kinds: what the dynamic loader, the C library and interpreters obey (glibc's own list for
# set-user-id programs, sysdeps/generic/unsecvars.h; sudo's list of bad names, plugins/sudoers/env.c), where programs
# and configuration are found, and what of an engine's libraries opens a library or a program by name.
_ENV: Mapping[str, str] = MappingProxyType(
    {
        r"LD_.*|GLIBC_TUNABLES|GCONV_PATH|GETCONF_DIR|LOCPATH|NLSPATH|MALLOC_TRACE|NIS_PATH|TZDIR|TMPDIR": (
            "the C library obeys it"
        ),
        r"HOSTALIASES|LOCALDOMAIN|RES_OPTIONS|RESOLV_HOST_CONF": "it changes where names lead",
        r"PYTHON.*|JAVA_TOOL_OPTIONS|NODE_OPTIONS|NODE_PATH|PERL.*|RUBYLIB|RUBYOPT": "an interpreter obeys it",
        r"BASH_.*|ENV|IFS|CDPATH|GLOBIGNORE|SHELLOPTS|BASHOPTS|PS4|PROMPT_COMMAND|FPATH|ZDOTDIR|SHELL": (
            "a shell obeys it"
        ),
        r"PATH|HOME|XDG_.*|CC|CXX|CUDACXX|NVCC.*|CUDA_HOME|CUDA_PATH|ROCM_PATH|ROCM_HOME|TRITON_.*PATH|.*_COMPILER": (
            "programs are found by it"
        ),
        r"GIT_.*|PIP_.*|UV_.*|CURL_HOME|OPENSSL_.*|SSLKEYLOGFILE": "a program's configuration is found by it",
        r".*_SO_PATH|NCCL_.*PLUGIN|NCCL_CONF_FILE|CUDA_INJECTION.*|OMP_TOOL_LIBRARIES|VLLM_RUST_FRONTEND_PATH": (
            "a library or a program is opened by it"
        ),
        r"ASCEND_.*OPP_PATH|VLLM_MODEL_REDIRECT_PATH|VLLM_LOGGING_CONFIG_PATH|VLLM_DEBUG_DUMP_PATH": (
            "files are chosen by it"
        ),
        r"VLLM_ALLOW_INSECURE_SERIALIZATION": "it lets messages carry code",
    }
)
# They begin like guarded ones, and choose nothing: a number, and a switch.
_HARMLESS = frozenset({"PYTHONHASHSEED", "PYTHONUNBUFFERED"})
_GUARDED_ENV = tuple((re.compile(f"(?:{names})\\Z"), why) for names, why in _ENV.items())


def guarded_env(names: Collection[str], allowed: Collection[str] = ()) -> dict[str, str]:
    """Those of `names` that only the node's own file may set, with the reason. An entry of `allowed` may end in `*`."""
    found = {}
    for name in sorted(names):
        why = next((why for pattern, why in _GUARDED_ENV if pattern.match(name)), "")
        if why and name not in _HARMLESS and not _is_allowed(name, allowed):
            found[name] = why
    return found


def guarded_flags(argv: Sequence[str], known: Collection[str], allowed: Collection[str] = ()) -> dict[str, str]:
    """The options of `argv` that only the node's own file may let through, with the reason.

    `known`: the engine's own option names. argparse takes an unambiguous beginning for the whole (`--worker-c`), so a
    name that is none of them and begins a guarded one counts as it.
    """
    found = {}
    for name, values in options_of(argv):
        option = name.partition(".")[0]
        why = FLAGS.get(option, "")
        if not why and option not in known and len(option) > 1:
            why = next((reason for flag, reason in FLAGS.items() if flag.startswith(option)), "")
        try:
            inside = [key for value in values for key, _ in _walk(_data(value))]
        except RecursionError:
            inside, why = [], why or "is nested too deeply to be looked into"
        if not why:
            members = [*name.split("."), *inside]
            why = next(
                (f"{key}: {reason}" for key in members for shape, reason in _MEMBERS if shape.fullmatch(key)), ""
            )
        if why and not _is_allowed(option, allowed):
            found[option] = why
    return found


def model_paths(argv: Sequence[str]) -> list[tuple[str, str]]:
    """(option, path) of every file or folder that `argv` makes the engine read as a model or a template."""
    found = []
    for name, values in options_of(argv):
        if name.partition(".")[0] not in MODEL_FILES:
            continue
        for value in values:
            data = _data(value)
            texts = [text for _, text in _walk(data)] if data is not None else [value, value.partition("=")[2]]
            found += [(name, text) for text in texts if is_path(text)]
    return found


def hub_names(argv: Sequence[str]) -> list[tuple[str, str]]:
    """(option, name) of what the engine fetches from a hub, and of whose code it may be told to trust."""
    found = []
    for name, values in options_of(argv):
        if name in _MODELS:
            found += [(name, value) for value in values[:1] if not is_path(value)]
        elif name.partition(".")[0] == "speculative-config":
            members = [member for value in values for member in _walk(_data(value), name.partition(".")[2])]
            plain = [(name.partition(".")[2], value) for value in values if _data(value) is None]
            found += [(name, text) for key, text in [*members, *plain] if key == "model" and text and not is_path(text)]
    return found


def options_of(argv: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """(name in dashes, values) of every option; of a short one such as `-O` the name has no dash in front either."""
    name = ""
    values: list[str] = []
    for word in argv:
        if is_flag_like(word):
            if name:
                yield name, values
            spelled, equals, value = word.lstrip("-").partition("=")
            name, values = spelled.replace("_", "-"), [value] if equals else []
        else:
            values.append(word)
    if name:
        yield name, values


def is_path(text: str) -> bool:
    """True for what leads to a place of the file system; `org/model` is a name."""
    return text.startswith(("/", "~", "file:", "./")) or ".." in text.split("/")


def _is_allowed(name: str, allowed: Collection[str]) -> bool:
    return any(name == one or (one.endswith("*") and name.startswith(one[:-1])) for one in allowed)


def _data(value: str) -> Any:
    if not value.startswith(("{", "[")):
        return None
    try:
        return json.loads(value)
    except ValueError:
        return None


def _walk(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """(name of the member, text) of every text in plain data; a member of another kind has an empty text."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield key, ""
            yield from _walk(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from _walk(item, name)
    elif isinstance(value, str):
        yield name, value
