"""When .venv counts as complete, and what a machine without venv is told."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from demo import project_environment
from demo.cache import SetupFailed


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(project_environment, "ROOT", tmp_path)
    monkeypatch.setattr(project_environment, "FOLDER", tmp_path / ".venv")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    return tmp_path


def test_another_pyproject_or_another_place_needs_another_installation(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = project_environment.stamp()
    assert first == project_environment.stamp()
    (root / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    second = project_environment.stamp()
    monkeypatch.setattr(project_environment, "FOLDER", root / "moved" / ".venv")
    assert len({first.name, second.name, project_environment.stamp().name}) == 3


def test_a_complete_environment_is_used_as_it_is(root: Path) -> None:
    python = root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    project_environment.stamp().touch()
    assert project_environment.ensure_project_environment(lambda line: pytest.fail(line)) == python


def test_a_python_without_venv_is_told_which_package_to_install(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SetupFailed, match=r"apt-get install python3\.\d+-venv"):
        project_environment.ensure_project_environment(print)
