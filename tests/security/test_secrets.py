"""Secrets are planted everywhere they may stand, and looked for in everything that comes out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from engine_launch.secrets import MASK, Mask, is_secret, redact, redact_argv, redact_env, secret_values
from nodemanager.config import ConfigError, load
from tests.cluster.deployment import Deployment, engine_section
from tests.config.files import engine, file_with, problems_of

ENGINE = Path(__file__).parent / "talkative_engine.py"
PLANTED = {
    "env": "Planted-env-4711",
    "api": "Planted-api-4712",
    "api2": "Planted-api-4713",
    "extra": "Planted-extra-4714",
    "json": 'Planted-"json"-4715',
    "node": "Planted-node-4716",
    "url": "Planted-url-4717",
}


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True), ("VLLM_API_KEY", True), ("--api-key", True), ("aws_secret", True), ("db-password", True),
        ("AWS_SECRET_ACCESS_KEY", True), ("SSL_PASSPHRASE", True), ("KEY", True), ("GOOGLE_CREDENTIALS", True),
        ("max-num-batched-tokens", False), ("TOKENIZERS_PARALLELISM", False), ("ssl-keyfile", False), ("", False),
        ("KEYBOARD", False),
    ],
)  # fmt: skip
def test_what_is_secret_by_its_name(name: str, secret: bool) -> None:
    assert is_secret(name) is secret


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["--api-key", "a", "b", "--port", "1"], ["--api-key", MASK, MASK, "--port", "1"]),
        (["--api-key=-x", "m"], [f"--api-key={MASK}", MASK]),
        (["--api_key", "-1"], ["--api_key", MASK]),
        (["--hf-token", "t", "-tp", "2"], ["--hf-token", MASK, "-tp", "2"]),
        (
            ["--kv-transfer-config", '{"a":1.50,"x":{"token":"t"}}'],
            ["--kv-transfer-config", '{"a":1.5,"x":{"token":"***"}}'],
        ),
        (["--kv-transfer-config", '{"a":1.50}'], ["--kv-transfer-config", '{"a":1.50}']),
        (["--kv-transfer-config.api_key", "t"], ["--kv-transfer-config.api_key", MASK]),
        (["--model", "https://me:pw@host/m"], ["--model", f"https://{MASK}@host/m"]),
        (["--max-num-batched-tokens", "8192"], ["--max-num-batched-tokens", "8192"]),
    ],
)
def test_a_command_line_as_it_is_shown(argv: list[str], shown: list[str]) -> None:
    assert redact_argv(argv) == shown


def test_an_environment_and_data_as_they_are_shown() -> None:
    env = {"HF_TOKEN": "t", "HTTP_PROXY": "http://me:pw@proxy:3128", "RANK": "1"}
    assert redact_env(env) == {"HF_TOKEN": MASK, "HTTP_PROXY": f"http://{MASK}@proxy:3128", "RANK": "1"}
    data = {"api_key": ["a", {"b": 1}], "deep": [{"password": 5}], "on": {"token": None, "use_key": True}}
    shown = {"api_key": MASK, "deep": [{"password": MASK}], "on": {"token": None, "use_key": True}}
    assert redact(data) == shown
    assert redact(["--api-key", "x"]) == ["--api-key", MASK]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("non-default args: {'api_key': ['abc'], 'port': 1}", "non-default args: {'api_key': ['***'], 'port': 1}"),
        ("started with --api-key abc --port 1", "started with --api-key *** --port 1"),
        ("HF_TOKEN=abc", "HF_TOKEN=***"),
        ('"password": "abc"', '"password": "***"'),
        ("Authorization: Bearer abc.def-ghi", "Authorization: Bearer ***"),
        ("the value known-value stands alone", "the value *** stands alone"),
        ("Avg prompt throughput: 5 tokens/s, 3 tokens: 4", "Avg prompt throughput: 5 tokens/s, 3 tokens: 4"),
        ("GET http://a:b@c/d", "GET http://***@c/d"),
    ],
)
def test_text_without_secrets(text: str, shown: str) -> None:
    assert Mask({"known-value"})(text) == shown


def test_a_short_value_is_not_looked_for_in_text() -> None:
    """`USE_KEY=1` would hide every 1."""
    assert Mask.of([], {"USE_KEY": "1", "A_TOKEN": "longer"})("1 longer") == "1 ***"
    assert secret_values(["--api-key", "abcdefg"], {}) == {"abcdefg"}


def planted_in(text: str) -> list[str]:
    forms = {value for secret in PLANTED.values() for value in (secret, json.dumps(secret)[1:-1])}
    return [form for form in forms if form in text]


WRONG = [
    {"env": {"HF_TOKEN": ["Planted-env-4711"]}},
    {"env": {"HF_TOKEN": "Planted-env-4711\nx"}},
    {"env": {"MOTOR_TOKEN": "Planted-env-4711"}},
    {"env": {"A KEY": "Planted-env-4711"}},
    {"env": {"HF_TOKEN": "Planted-env-4711", "RANK": "1"}, "section": {"env_": {"HF_TOKEN": "Planted-env-4711"}}},
    {"section": {"HF_TOKEN": "Planted-env-4711"}},
    {"section": {"extra_args": ["Planted-extra-4714"]}, "api-key": "Planted-extra-4714"},
    {"section": {"extra_args": ["--api-key", "Planted-extra-4714", "--tensor-parallel-size", "3"]}},
    {"section": {"extra_args": {"api-key": "Planted-extra-4714"}}},
    {"api-key": ["Planted-api-4712", "-Planted-api-4712"]},
    {"api-key": True, "hf-token": "Planted-api-4712", "api_key": "Planted-api-4712"},
    {"port": "Planted-api-4712", "api-key": "Planted-api-4712"},
    {"kv_transfer_config": {"kv_role": 5, "api_key": "Planted-api-4712"}},
    {"kv_transfer_config": '{"token": "Planted-api-4712"}'},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_no_finding_about_deploy_json_quotes_a_secret(wrong: dict[str, Any]) -> None:
    config = {key: value for key, value in wrong.items() if key not in ("env", "section")}
    section = engine(env=wrong.get("env"), section=dict(wrong.get("section", {})))
    section["engine_config"].update(config)
    found = "\n".join(map(str, problems_of(file_with(prefill=section))))
    assert found
    assert not planted_in(found), found


@pytest.mark.parametrize(
    "text",
    [
        "engines: {vllm: {python: /x, env: {HF_TOKEN: [Planted-node-4716]}}}",
        "engines: {vllm: {python: /x, command: [serve, --api-key, Planted-node-4716], env: 5}}",
        "engines: {vllm: {command: [serve, --api-key, Planted-node-4716], python: /x}}",
        "engines: {vllm: {python: /x, HF_TOKEN: Planted-node-4716}}",
        "HF_TOKEN: Planted-node-4716",
        "env:\n  HF_TOKEN: Planted-node-4716: x\n",
        "env:\n  HF_TOKEN: 'Planted-node-4716\n",
        "env: {HF_TOKEN: Planted-node-4716, controllers: [Planted-node-4716]",
    ],
)
def test_no_finding_about_the_node_file_quotes_a_secret(tmp_path: Path, text: str) -> None:
    (tmp_path / "node.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        load(tmp_path / "node.yaml")
    assert not planted_in(str(error.value)), str(error.value)


def section(**more: Any) -> dict[str, Any]:
    one = engine_section(nnodes=1, **{"api-key": [PLANTED["api"], PLANTED["api2"]], "hf-token": PLANTED["api"]})
    one["engine_config"]["additional-config"] = {"token": PLANTED["json"], "plain": 1}
    one["extra_args"] = ["--ssl-keyfile-password", PLANTED["extra"]]
    proxy = f"http://me:{PLANTED['url']}@proxy:3128"
    one["env"] = {"HF_TOKEN": PLANTED["env"], "HTTPS_PROXY": proxy, **more}
    return one


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_a_run_holds_a_secret(deploy: Callable[..., Deployment], fails: bool) -> None:
    """A real controller and node, an engine that prints all it was given, and everything they say and keep."""
    env = {"TALK_AND_FAIL": "1"} if fails else {}
    deployment = deploy(
        {"motor_engine_prefill_config": section(**env)}, timers={"max_restarts": 0, "restart_backoff": 0.2}
    )
    deployment.start_controller()
    node = deployment.add_node(
        1,
        engines={
            "vllm": {
                "command": [sys.executable, str(ENGINE)],
                "version": "0.32.0",
                "env": {"MY_SECRET": PLANTED["node"], "SCRIPTED_ENGINE": "{}"},
            }
        },
    )
    node.start()
    if fails:
        deployment.wait(lambda: deployment.group()["last_failure"], "the failure", 30.0)
        assert deployment.group()["last_failure"]["last_log_lines"], "the engine's last words are shown"
    else:
        deployment.wait_ready()
    client = httpx.Client(base_url=deployment.url, trust_env=False, timeout=20.0)
    said = {
        path: client.get(path).text
        for path in (
            "/v1/status", "/v1/nodes", "/v1/instances", "/v1/events?limit=1000", "/metrics", "/openapi.json",
            "/v1/logs/prefill-0/0/0?tail=1000", "/v1/logs/n1?tail=1000",
        )
    }  # fmt: skip
    assert "non-default args" in said["/v1/logs/prefill-0/0/0?tail=1000"], "the log is shown"
    said["node /status"] = json.dumps(node.local_status())
    for words in (["plan"], ["plan", "-o", "json"], ["validate"], ["validate", "-o", "json"]):
        ended = subprocess.run(
            [sys.executable, "-m", "motorctl.main", words[0], str(deployment.file), *words[1:]],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        said[" ".join(words)] = ended.stdout + ended.stderr
    assert f"HF_TOKEN='{MASK}'" in said["plan"] and f"--api-key '{MASK}' '{MASK}'" in said["plan"]
    said["controller's log"] = (deployment.root / "controller.out").read_text()
    said["manager's output"] = node.output()
    client.close()
    told = {where: found for where, text in said.items() if (found := planted_in(text))}
    assert not told

    # On the disk they stand where they must, and only their owner and its group can read that.
    holding = {deployment.file, node.file}
    for file in sorted(deployment.root.rglob("*")):
        if file.is_file() and file not in holding and planted_in(file.read_text(errors="replace")):
            if file.name.startswith("prefill-0"):  # the engine's own log, written by itself
                assert file.stat().st_mode & 0o007 == 0, file
            else:
                assert file.name == "start.json", file
                assert file.stat().st_mode & 0o777 == 0o600, file


def test_a_node_file_is_read_as_before(tmp_path: Path) -> None:
    content = {"controllers": ["127.0.0.1"], "engines": {"vllm": {"python": "/x", "env": {"HF_TOKEN": "t" * 9}}}}
    (tmp_path / "node.yaml").write_text(yaml.safe_dump(content))
    assert load(tmp_path / "node.yaml").engines["vllm"].env["HF_TOKEN"] == "t" * 9
