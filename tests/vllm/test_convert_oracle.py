"""Command lines that people write, through `engine_config` and back: the real parser of vLLM reads both alike."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from demo.engine_environment import ensure_engine_environment
from engine_launch.engine_line import engine_line
from engine_launch.shell_text import read_script
from tests.golden_shapes import ROOT

pytestmark = pytest.mark.vllm

SCRIPT = Path(__file__).with_name("parse_round_trips.py")
GUIDE = ROOT / "tests" / "motorctl" / "scripts"

COMMANDS = [
    "M -tp 2 -pp=2 -n2 -r 1 -q fp8 -O2",
    "M -O=1 -ep -dph -asc 2",
    "M -O 3 --gpu_memory_utilization=0.90 --max_model_len 32k",
    "M --tensor-par 4 --no-enable-prefix-c --max-model 16",
    "M --served-model-name a 'b c' --port 8000",
    "--served-model-name a b --max-num-seqs 4 -- M",
    "M --compilation-config.mode 3 -cc.cudagraph_mode=NONE -cc.cudagraph_capture_sizes+=1,2",
    "M -cc '{\"mode\": 3}' -cc.cudagraph_mode NONE",
    "M -cc.mode 3 --compilation-config.cudagraph_mode NONE -cc.cudagraph_capture_sizes '[1, 2]'",
    "M --hf-overrides.a.b 1k --hf-overrides.a.c 2K --hf-overrides.l+ x --hf-overrides.l+ y,z",
    'M --hf-overrides \'{"a": {"b_c": [1, null, true, 1.50, "é"]}}\' --additional-config=\'{"x": -0.5}\'',
    "M --hf-token --hf-token abc --seed -1 --seed=7",
    "M --enforce-eager --no-enforce-eager --dtype half --dtype=auto",
    "M --middleware a.b --middleware=c.d --allowed-origins '[\"*\"]'",
    'M --lora-modules a=/b \'{"name": "c", "path": "/d", "base_model_name": "e"}\'',
    "M --chat-template '-begins with a dash' --override-generation-config {}",
    "M --limit-mm-per-prompt.image 2 --limit-mm-per-prompt.video=0 --trust-remote-code",
    'M --default-chat-template-kwargs \'{"a": "$x `y` \\\\ \\"z\\""}\' --uvicorn-log-level info',
]


def commands() -> dict[str, list[str]]:
    found = {text: shlex.split(text) for text in COMMANDS}
    for path in sorted(GUIDE.glob("*.sh")):
        for command in read_script(path.read_text()).commands:
            if (line := engine_line(command)) is not None:
                # The installed vLLM has no plug-in that brings this method.
                words = ["fp8" if word.text == "ascend" else word.text for word in line.words]
                found[path.name] = words
    return found


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    """One child for all command lines, and for all flags of the parser."""
    environment = ensure_engine_environment(print)
    job = {"commands": commands(), "root": str(ROOT), "flag_list": "vllm-0.32.json"}
    done = subprocess.run(
        [str(environment.python), str(SCRIPT)],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=600,
        env={"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", commands())
def test_the_parser_reads_both_alike(name: str, results: dict[str, dict[str, Any]]) -> None:
    assert results[name] == {"differs": {}}


def test_the_parser_reads_every_flag_alike(results: dict[str, dict[str, Any]]) -> None:
    flags = {name: result for name, result in results.items() if name.startswith("flag ")}
    assert len(flags) > 500
    assert {name: result for name, result in flags.items() if result != {"differs": {}}} == {}
