"""What reaches an engine's environment, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodemanager import environment
from nodemanager.environment import EngineEnvironmentError, ScriptCache, compose, node_values

OWN = {
    "PATH": "/bin", "HOME": "/root", "LANG": "C.UTF-8", "TZ": "UTC", "TMPDIR": "/var/tmp", "RANK": "3",
    "VLLM_DP_SIZE": "4", "SECRET": "x", "LD_LIBRARY_PATH": "/manager", "http_proxy": "http://p",
}  # fmt: skip


def made(**layers: dict[str, str]) -> environment.EngineEnvironment:
    empty: dict[str, dict[str, str]] = {"scripts": {}, "command": {}, "node": {}, "engine": {}, "marks": {}}
    return compose(**{**empty, **layers}, own=OWN)


def test_only_the_allow_list_comes_from_the_manager() -> None:
    result = made()
    assert result.values == {
        "PATH": "/bin", "HOME": "/root", "LANG": "C.UTF-8", "TZ": "UTC", "TMPDIR": "/var/tmp", "SPT_NOENV": "1",
    }  # fmt: skip
    assert result.scrubbed == {"RANK": "manager", "VLLM_DP_SIZE": "manager"}


def test_later_layers_win() -> None:
    result = made(
        scripts={"A": "script", "B": "script", "C": "script", "D": "script", "LD_LIBRARY_PATH": "/cann"},
        command={"B": "controller", "C": "controller", "D": "controller"},
        node={"C": "node", "D": "node"},
        engine={"D": "file", "PYTHONUNBUFFERED": "1"},
        marks={"MOTOR_SLOT": "p/0/0"},
    )
    assert [result.values[name] for name in "ABCD"] == ["script", "controller", "node", "file"]
    assert result.values["LD_LIBRARY_PATH"] == "/cann" and result.values["PYTHONUNBUFFERED"] == "1"
    assert result.values["MOTOR_SLOT"] == "p/0/0"


@pytest.mark.parametrize(
    "name", ["VLLM_DP_RANK", "VLLM_DP_ANYTHING", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"]
)
@pytest.mark.parametrize("layer", ["scripts", "command", "engine"])
def test_topology_is_scrubbed_and_reported(name: str, layer: str) -> None:
    result = made(**{layer: {name: "1"}})
    assert name not in result.values and name in result.scrubbed


@pytest.mark.parametrize("name", ["RANK_TABLE_FILE", "RANK_ID", "RANK_SIZE"])
def test_a_rank_table_comes_from_the_node_file_only(name: str) -> None:
    for layer in ("scripts", "command", "node"):
        result = made(**{layer: {name: "1"}})
        assert name not in result.values and name in result.scrubbed
    result = made(engine={name: "1"})
    assert result.values[name] == "1" and name not in result.scrubbed


def test_left_overs_of_the_manager_are_reported() -> None:
    own = {**OWN, "RANK_TABLE_FILE": "/x.json", "HCCL_IF_IP": "10.9.9.9", "HCCL_BUFFSIZE": "1"}
    assert environment.left_out(own) == ["HCCL_BUFFSIZE", "HCCL_IF_IP", "RANK", "RANK_TABLE_FILE", "VLLM_DP_SIZE"]
    result = compose({}, {"HCCL_BUFFSIZE": "768"}, {"HCCL_IF_IP": "10.0.0.1"}, {}, {}, own)
    assert result.values["HCCL_IF_IP"] == "10.0.0.1" and result.values["HCCL_BUFFSIZE"] == "768"
    assert "RANK_TABLE_FILE" not in result.values
    assert set(result.scrubbed) == set(environment.left_out(own))


def test_node_values() -> None:
    kinds = {"VLLM_HOST_IP": "address", "GLOO_SOCKET_IFNAME": "interface", "CUDA_VISIBLE_DEVICES": "devices"}
    assert node_values(kinds, "10.0.0.1", "eth0", ["2", "3"]) == {
        "VLLM_HOST_IP": "10.0.0.1", "GLOO_SOCKET_IFNAME": "eth0", "CUDA_VISIBLE_DEVICES": "2,3",
    }  # fmt: skip
    with pytest.raises(EngineEnvironmentError, match="hostname"):
        node_values({"X": "hostname"}, "10.0.0.1", "eth0", [])


async def test_scripts_are_sourced_in_order_in_a_clean_bash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOISE", "1")
    first, second = tmp_path / "a.sh", tmp_path / "b.sh"
    first.write_text("echo chatter\nexport CANN=/usr/local/Ascend\nlocal_only=1\nexport MULTI=$'two\\nlines'\n")
    second.write_text('export LD_LIBRARY_PATH="$CANN/lib:$LD_LIBRARY_PATH"\nexport SAW="${NOISE:-clean}"\nfalse\n')
    got = await ScriptCache().variables([str(first), str(second)])
    assert got == {
        "CANN": "/usr/local/Ascend", "MULTI": "two\nlines", "LD_LIBRARY_PATH": "/usr/local/Ascend/lib:",
        "SAW": "clean",
    }  # fmt: skip


async def test_scripts_are_cached_until_they_change(tmp_path: Path) -> None:
    script, count = tmp_path / "a.sh", tmp_path / "count"
    script.write_text(f"echo x >> {count}\nexport A=1\n")
    cache = ScriptCache()
    assert await cache.variables([str(script)]) == await cache.variables([str(script)]) == {"A": "1"}
    assert count.read_text() == "x\n"
    script.write_text("export A=2\n")
    import os

    os.utime(script, (1, 1))
    assert await cache.variables([str(script)]) == {"A": "2"}


async def test_script_errors_are_shown(tmp_path: Path) -> None:
    with pytest.raises(EngineEnvironmentError, match="cannot be read"):
        await ScriptCache().variables([str(tmp_path / "missing.sh")])
    script = tmp_path / "a.sh"
    script.write_text("echo no driver here >&2\nexit 4\n")
    with pytest.raises(EngineEnvironmentError, match=r"(?s)ended with 4.*no driver here"):
        await ScriptCache().variables([str(script)])


async def test_a_script_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "SCRIPT_SECONDS", 0.3)
    script = tmp_path / "a.sh"
    script.write_text("sleep 600\n")
    with pytest.raises(EngineEnvironmentError, match="not done"):
        await ScriptCache().variables([str(script)])
