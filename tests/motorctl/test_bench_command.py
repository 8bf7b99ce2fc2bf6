"""`motorctl bench-command`, as an operator runs it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from motorctl.main import main
from tests.golden_shapes import GOLDEN, ROOT

SAMPLE = ROOT / "configs" / "atom.json"
TBO = GOLDEN / "inputs" / "atom-tbo.json"


def bench(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["bench-command", *(str(word) for word in words)])


def commands(text: str) -> list[list[str]]:
    """Every command that a shell would run, in words."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return [shlex.split(one) for one in lines.replace("\\\n", " ").splitlines() if one.strip()]


def servers(text: str) -> list[list[str]]:
    """The servers of the baselines, which stand in comments."""
    lines = "\n".join(line.removeprefix("#   ") for line in text.splitlines() if line.startswith("#   "))
    return [shlex.split(one) for one in lines.replace("\\\n", " ").splitlines()]


def after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_the_guides_benchmark_for_the_deployment_and_for_tp_alone() -> None:
    result = bench(SAMPLE)
    assert result.exit_code == 0
    deployed, baseline = commands(result.stdout)
    assert deployed == baseline
    assert deployed[:4] == ["python", "-m", "atom.benchmarks.benchmark_serving", "--model=/mnt/weight/DeepSeek-V4"]
    assert deployed[4:] == [
        "--backend=vllm",
        "--base-url=http://<union-0/0/0>:8000",
        "--dataset-name=random",
        "--random-input-len=32768",
        "--random-output-len=512",
        "--num-prompts=128",
        "--max-concurrency=64",
        "--request-rate=inf",
        "--ignore-eos",
    ]
    (server,) = servers(result.stdout)
    assert (after(server, "--tensor-parallel-size"), after(server, "--prefill-context-parallel-size")) == ("8", "1")
    assert "--no-enable_chunked_prefill" in server


def test_tbo_is_compared_with_the_same_pcp_first() -> None:
    same, alone = servers(bench(TBO).stdout)
    assert (after(same, "--tensor-parallel-size"), after(same, "--prefill-context-parallel-size")) == ("1", "8")
    assert (after(alone, "--tensor-parallel-size"), after(alone, "--prefill-context-parallel-size")) == ("8", "1")
    assert "--enable-tbo" not in same + alone


def test_sizes_and_place_can_be_given() -> None:
    result = bench(SAMPLE, "--base-url", "http://10.0.0.1:7777", "--input-len", "1000", "--num-prompts", "8")
    words = commands(result.stdout)[0]
    assert {"--base-url=http://10.0.0.1:7777", "--random-input-len=1000", "--num-prompts=8"} <= set(words)


def test_what_the_server_cannot_take_is_said() -> None:
    assert "do not fit into max-model-len 131072" in bench(SAMPLE, "--input-len", "131072").stderr


def test_other_engines_have_no_such_benchmark() -> None:
    result = bench(ROOT / "configs" / "seed.json")
    assert result.exit_code == 2 and "no ATOM engine" in result.stderr and not result.stdout


def test_a_tbo_mode_goes_with_its_flag(tmp_path: Path) -> None:
    content: dict[str, Any] = json.loads(TBO.read_text())
    content["motor_engine_union_config"]["engine_config"]["enable-tbo"] = "prefill"
    (tmp_path / "deploy.json").write_text(json.dumps(content))
    same, _ = servers(bench(tmp_path / "deploy.json").stdout)
    assert "--enable-tbo" not in same and "prefill" not in same
