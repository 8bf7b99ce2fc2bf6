"""What a controller may make a node run: every way around the node's own file that is known here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from motor_rpc import control_pb2 as pb

from engine_launch.guarded import FLAGS, guarded_env, guarded_flags, model_paths
from tests.nodemanager import wire
from tests.nodemanager.conftest import place  # noqa: F401  a fixture of theirs
from tests.nodemanager.manager import Direct, direct
from tests.nodemanager.places import free_port, until

LOADER = [
    "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "BASH_ENV", "ENV", "IFS",
    "BASH_FUNC_ls%%", "GCONV_PATH", "GLIBC_TUNABLES", "NODE_OPTIONS", "PERL5LIB", "PERL5OPT", "RUBYOPT", "PATH", "HOME",
    "TMPDIR", "CC", "NVCC_PREPEND_FLAGS", "OPENSSL_CONF", "VLLM_NCCL_SO_PATH", "NCCL_NET_PLUGIN", "CUDA_INJECTION64",
    "VLLM_LOGGING_CONFIG_PATH", "VLLM_MODEL_REDIRECT_PATH", "VLLM_RUST_FRONTEND_PATH", "GIT_SSH_COMMAND",
]  # fmt: skip
PLAIN = [
    "VLLM_USE_V1", "HCCL_BUFFSIZE", "NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS", "PYTORCH_NPU_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF", "HF_TOKEN", "HF_HUB_OFFLINE", "TASK_QUEUE_ENABLE", "ASCEND_RT_VISIBLE_DEVICES", "ENVOY",
    "PYTHONHASHSEED", "HTTPS_PROXY", "NO_PROXY", "VLLM_HOST_IP", "SPT_NOENV", "CCACHE", "TOKENIZERS_PARALLELISM",
]  # fmt: skip


@pytest.mark.parametrize("name", LOADER)
def test_names_that_choose_code_are_the_nodes_own(name: str) -> None:
    assert guarded_env([name])
    assert not guarded_env([name], [name])


@pytest.mark.parametrize("name", PLAIN)
def test_names_that_engines_need_are_free(name: str) -> None:
    assert not guarded_env([name])


def test_an_entry_may_stand_for_many() -> None:
    assert set(guarded_env(["LD_PRELOAD", "LD_AUDIT", "PATH"], ["LD_*"])) == {"PATH"}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--middleware", "os.x"], "middleware"),
        (["--worker-cls=a.B"], "worker-cls"),
        (["--worker_extension_cls", "a.B"], "worker-extension-cls"),
        (["--worker-e", "a.B"], "worker-e"),
        (["--tool-parser-plugin", "/x.py"], "tool-parser-plugin"),
        (["--kv-transfer-config", '{"kv_connector_module_path":"a.b"}'], "kv-transfer-config"),
        (["--kv-transfer-config", '{"x":{"connectors":[{"kv_connector_module_path":"a.b"}]}}'], "kv-transfer-config"),
        (["--kv-transfer-config.kv_connector_module_path", "a.b"], "kv-transfer-config"),
        (["--structured-outputs-config", '{"reasoning_parser_plugin":"/x.py"}'], "structured-outputs-config"),
        (["-O", '{"inductor_passes":{"a":"b.c"}}'], "O"),
        (["--profiler-config", '{"torch_profiler_dir":"/x"}'], "profiler-config"),
        (["--config", "/x.yaml"], "config"),
        (["--port", "1", "--download-dir", "/x"], "download-dir"),
    ],
)
def test_options_that_choose_code_or_files(words: list[str], name: str) -> None:
    known = {"port", "model", "trust-remote-code", "kv-transfer-config", "profiler-config", "structured-outputs-config"}
    argv = ["vllm", "serve", "m", *words]
    assert list(guarded_flags(argv, known)) == [name]
    assert not guarded_flags(argv, known, [name])


def test_options_that_do_not() -> None:
    argv = [
        "vllm", "serve", "m", "--config-format", "hf", "--model-impl", "auto", "--trust-remote-code", "--host", "::",
        "--tool-call-parser", "hermes", "--log-level", "info", "-tp", "2", "--worker-count", "-1",
        "--kv-transfer-config", '{"kv_connector":"X"}',
    ]  # fmt: skip
    known = {
        "config-format",
        "model-impl",
        "trust-remote-code",
        "host",
        "tool-call-parser",
        "log-level",
        "kv-transfer-config",
    }
    assert not guarded_flags(argv, known)
    assert set(FLAGS) >= {"middleware", "worker-cls", "logits-processors"}


def test_where_models_are_read_from() -> None:
    argv = [
        "vllm", "serve", "m", "--tokenizer", "/t", "--model=../x", "--lora-modules", "a=/l", "b=org/x", '{"path":"/j"}',
        "--speculative-config", '{"model":"/s","method":"x/y"}', "--chat-template", "{% if a %}", "--port", "/no",
        "--hf-config-path", "~/x", "--generation-config", "file:///g",
    ]  # fmt: skip
    assert [path for _, path in model_paths(argv)] == ["/t", "../x", "/l", "/j", "/s", "~/x", "file:///g"]


# --- a real node manager, and engines that are processes


def start(one: Direct, *words: str, model: str = "tiny", **fields: Any) -> pb.StartCmdMsg:
    port = free_port()
    argv = ["vllm", "serve", model, "--host", "127.0.0.1", "--port", str(port), *words]
    return wire.start(wire.slot(), model, 0, port, **{"argv": argv, **fields})


async def refusal(one: Direct, message: pb.StartCmdMsg) -> str:
    await one.command(start=message)
    refused = await one.answer("command_refused")
    assert refused.code == "limits", refused
    assert not list(one.records.generations())
    return str(refused.reason)


async def stop(one: Direct) -> None:
    await one.command(stop=pb.StopCmdMsg(slot=wire.slot(), generation=1, mode="failure", grace_seconds=1))
    await one.state("stopped")


async def test_what_a_node_refuses_and_which_key_of_its_file_would_let_it_through(place: Path) -> None:  # noqa: F811
    async with direct(place) as one:
        outside = place / "elsewhere"
        outside.mkdir()
        (outside / "config.json").write_text("{}")
        (one.node.model.parent / "way-out").symlink_to(outside)
        assert "allow_env" in await refusal(one, start(one, env={"LD_PRELOAD": "/x.so"}))
        assert "allow_flags" in await refusal(one, start(one, "--worker-cls", "a.B"))
        for model in (
            str(outside),
            "way-out",
            "../../elsewhere",
            str(one.node.model.parent / ".." / ".." / "elsewhere"),
        ):
            assert "model_roots" in await refusal(one, start(one, model=model)), model
        for words in (["--tokenizer", str(outside)], ["--chat-template=/etc/hostname"], ["--model", "/etc"]):
            assert "is not below model_roots" in await refusal(one, start(one, *words)), words
        for path in ("../../elsewhere", "~/x", "file:///etc/hostname", "./x"):
            assert "expected an absolute path" in await refusal(one, start(one, "--tokenizer", path)), path


async def test_a_prepare_looks_at_where_the_model_is_as_well(place: Path) -> None:  # noqa: F811
    async with direct(place) as one:
        (one.node.model.parent / "way-out").symlink_to("/etc")
        for model in ("/etc", "way-out", "../../.."):
            await one.command(prepare=wire.prepare(wire.slot(), model, 0))
            report = await one.answer("prepare_report")
            assert not report.ok
            (item,) = [item for item in report.items if item.name == "model"]
            assert "is not below model_roots" in item.detail
        (one.node.model.parent / "alias").symlink_to(one.node.model)
        await one.command(prepare=wire.prepare(wire.slot(), "alias", 0))
        assert (await one.answer("prepare_report")).ok


async def test_the_node_file_may_allow_it(place: Path) -> None:  # noqa: F811
    outside = place / "templates"
    outside.mkdir()
    settings = {
        "allow_env": ["LD_*"],
        "allow_flags": ["worker-cls"],
        "model_roots": [str(place / "n0" / "models"), str(outside)],
    }
    async with direct(place, **settings) as one:
        words = ["--worker-cls", "a.B", "--chat-template", str(outside / "x.jinja"), "--trust-remote-code"]
        await one.command(start=start(one, *words, env={"LD_BIND_NOW": "1"}))
        await one.state("ready")
        await stop(one)


async def test_code_of_a_hub_is_not_run_unless_the_node_allows_it(place: Path) -> None:  # noqa: F811
    async with direct(place, allow_hub_models=True) as one:
        for word in ("--trust-remote-code", "--trust_remote_code", "--trust-remote"):
            assert "hub" in await refusal(one, start(one, word, model="org/model"))
            assert "tokenizer 'org/x'" in await refusal(one, start(one, word, "--tokenizer", "org/x"))
            assert "'org/x'" in await refusal(one, start(one, word, "--speculative-config", '{"model":"org/x"}'))
        await one.command(start=start(one, model="org/model"))
        await one.state("ready")
        await stop(one)


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["vllm"],
        ["vllm", "bench", "serve", "tiny"],
        ["/bin/sh", "-c", "true"],
        ["python", "-c", "import os"],
        ["python", "-m", "http.server"],
        ["vllm; touch pwned", "serve", "tiny"],
    ],
)
async def test_only_what_the_profile_starts_is_started(place: Path, argv: list[str]) -> None:  # noqa: F811
    async with direct(place) as one:
        await refusal(one, start(one, argv=argv))


async def test_no_word_ever_meets_a_shell(place: Path) -> None:  # noqa: F811
    """Words full of what a shell would act on reach the engine as they are."""
    mark = place / "touched"
    words = [
        f"$(touch {mark})", f"`touch {mark}`", f"; touch {mark} #", f"| touch {mark}", f"&& touch {mark}", "$HOME", "*",
        "a b", "'", '"', "\\", "a\nb", "", "~", "é\u202e", ">(x)", "${IFS}", f"%0atouch {mark}",
    ]  # fmt: skip
    env = {"WORDS": json.dumps(words), "X": f"$(touch {mark})"}
    async with direct(place) as one:
        await one.command(start=start(one, "--served-model-name", *words, env=env))
        report = await one.state("ready")
        await until(lambda: b"--served-model-name" in Path(f"/proc/{report.pid}/cmdline").read_bytes())
        argv = [os.fsdecode(word) for word in Path(f"/proc/{report.pid}/cmdline").read_bytes().split(b"\0")[:-1]]
        assert argv[argv.index("--served-model-name") + 1 :] == words
        environment = Path(f"/proc/{report.pid}/environ").read_bytes().split(b"\0")
        assert f"X=$(touch {mark})".encode() in environment
        await stop(one)
    assert not mark.exists() and not list(place.rglob("touched*"))
