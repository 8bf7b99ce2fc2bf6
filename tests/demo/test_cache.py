"""What the cache promises, with real processes: one maker at a time, all or nothing, no leftovers."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from demo import cache, child, tiny_model

ROOT = Path(cache.__file__).resolve().parent.parent
PATIENCE = 10.0
"""Seconds after which a condition that comes in a fraction of one counts as never coming."""

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "motor").mkdir()
    return tmp_path / "motor"


@pytest.fixture
def start(root: Path) -> Iterator[Start]:
    """Start a program that uses the cache; what still runs at the end of the test is killed."""
    started: list[subprocess.Popen[str]] = []

    def start_program(program: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start_program
    for process in started:
        process.kill()
        process.communicate()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


# Holds the lock of "thing" with a half-written folder, and says so; never finishes.
HOLDER = """
    import time
    from demo import cache
    with cache.exclusive("thing", print), cache.workspace("thing") as work:
        (work / "model").mkdir()
        (work / "model" / "half").write_text("1")
        print("holding", flush=True)
        time.sleep(60)
"""

# Runs a long child with a child of its own, as pip might have; the file "pids" names both.
RUNNER = """
    import sys
    from demo import cache, child
    from demo.command_line import run_program

    def work(log):
        with cache.exclusive("thing", log) as lock, cache.workspace("thing") as work:
            pids = cache.cache_root() / "pids"
            script = f"sleep 61 & echo $! $$ > {work}/pids; mv {work}/pids {pids}; exec sleep 62"
            environment = child.clean_environment(work / "tmp")
            child.run(child.Command("x", ["sh", "-c", script], environment, lambda _: "", (lock,)), log)
            return work

    sys.exit(run_program(work))
"""


def test_a_published_folder_is_complete_and_its_work_folder_gone(root: Path) -> None:
    with cache.exclusive("thing", print), cache.workspace("thing") as work:
        (work / "model").mkdir()
        (work / "model" / "file").write_text("content")
        assert not cache.entry("thing").exists()
        final = cache.publish(work / "model", "thing")
    assert final == root / "thing"
    assert (final / "file").read_text() == "content"
    assert sorted(path.name for path in root.iterdir()) == ["thing", "thing.lock"]


def test_publishing_again_replaces_the_whole_folder(root: Path) -> None:
    for content in ("old", "new"):
        with cache.exclusive("thing", print), cache.workspace("thing") as work:
            (work / "model").mkdir()
            (work / "model" / content).touch()
            cache.publish(work / "model", "thing")
    assert [path.name for path in (root / "thing").iterdir()] == ["new"]


def test_nothing_is_left_when_making_fails(root: Path) -> None:
    with pytest.raises(RuntimeError), cache.exclusive("thing", print), cache.workspace("thing") as work:
        (work / "model").mkdir()
        raise RuntimeError
    assert [path.name for path in root.iterdir()] == ["thing.lock"]


def test_a_killed_maker_leaves_no_entry_and_the_next_one_cleans_up(root: Path, start: Start) -> None:
    holder = start(HOLDER)
    assert holder.stdout is not None and holder.stdout.readline() == "holding\n"
    holder.kill()
    holder.wait()
    (leftover,) = root.glob("thing~*")
    assert not (root / "thing").exists()

    with cache.exclusive("thing", print), cache.workspace("thing"):
        assert not leftover.exists()
    assert [path.name for path in root.iterdir()] == ["thing.lock"]


def test_leftovers_of_other_entries_are_not_touched(root: Path) -> None:
    (root / "thing-2~x").mkdir()
    with cache.exclusive("thing", print), cache.workspace("thing"):
        pass
    assert (root / "thing-2~x").is_dir()


def test_a_second_maker_waits_says_for_whom_and_goes_on_when_the_first_is_killed(root: Path, start: Start) -> None:
    holder = start(HOLDER)
    assert holder.stdout is not None and holder.stdout.readline() == "holding\n"
    second = start(HOLDER)
    assert second.stdout is not None
    assert second.stdout.readline() == f"thing: waiting for process {holder.pid}, which is making it (0 s)\n"
    assert len(list(root.glob("thing~*"))) == 1

    holder.kill()
    assert second.stdout.readline() == "holding\n"
    assert len(list(root.glob("thing~*"))) == 1


def test_a_cache_deleted_under_a_holder_does_not_leave_two_holders_of_one_lock(root: Path, start: Start) -> None:
    holder = start(HOLDER)
    assert holder.stdout is not None and holder.stdout.readline() == "holding\n"
    waiter = start(HOLDER)
    assert waiter.stdout is not None and "waiting" in waiter.stdout.readline()
    (root / "thing.lock").unlink()
    # The waiter must end up with the lock of the file that is there now, as later comers do.
    assert waiter.stdout.readline() == "holding\n"
    late = start(HOLDER)
    assert late.stdout is not None
    assert f"waiting for process {waiter.pid}" in late.stdout.readline()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_program_takes_its_children_along_and_leaves_nothing(
    root: Path, start: Start, number: signal.Signals
) -> None:
    runner = start(RUNNER)
    until((root / "pids").exists)
    pids = [int(pid) for pid in (root / "pids").read_text().split()]
    assert all(map(alive, pids))
    runner.send_signal(number)
    output, errors = runner.communicate(timeout=PATIENCE)
    assert runner.returncode == 128 + number
    assert output == ""
    assert errors.endswith(f"stopped by {number.name}; nothing half-made is left behind\n")
    until(lambda: not any(map(alive, pids)))
    assert sorted(path.name for path in root.iterdir()) == ["pids", "thing.lock"]


def test_a_killed_program_takes_its_child_along(root: Path, start: Start) -> None:
    runner = start(RUNNER)
    until((root / "pids").exists)
    inner, outer = (int(pid) for pid in (root / "pids").read_text().split())
    runner.kill()
    runner.wait()
    until(lambda: not alive(outer))
    # The grandchild may still write: the lock it inherited keeps the next maker out for just as long.
    waiting = start(HOLDER)
    assert waiting.stdout is not None and "waiting" in waiting.stdout.readline()
    os.kill(inner, signal.SIGKILL)
    assert waiting.stdout.readline() == "holding\n"


def test_a_stop_ends_the_wait_for_a_lock(root: Path, start: Start) -> None:
    with cache.exclusive("thing", print):
        runner = start(RUNNER)
        assert runner.stderr is not None
        assert "waiting for process" in runner.stderr.readline()
        runner.terminate()
        runner.communicate(timeout=PATIENCE)
    assert runner.returncode == 128 + signal.SIGTERM


def test_a_failed_command_says_what_ran_what_came_back_and_what_to_do(tmp_path: Path) -> None:
    command = child.Command(
        "counting",
        ["sh", "-c", "seq 100; echo no such thing >&2; exit 7"],
        child.clean_environment(tmp_path),
        lambda output: "look for it" if "no such thing" in output else "?",
    )
    with pytest.raises(cache.SetupFailed) as failed:
        child.run(command, print)
    lines = str(failed.value).splitlines()
    assert lines[0] == "FAILED: counting, after 0 s"
    assert lines[1] == "  ran: sh -c 'seq 100; echo no such thing >&2; exit 7'"
    assert lines[2] == "  came back: exit code 7"
    assert lines[-3:] == ["  | 100", "  | no such thing", "  what to do: look for it"]


def test_a_missing_program_is_a_failed_command(tmp_path: Path) -> None:
    command = child.Command("trying", [tmp_path / "missing"], {}, lambda _: "install it")
    with pytest.raises(cache.SetupFailed, match=r"did not start: (?s:.)*what to do: install it"):
        child.run(command, print)


def test_a_long_command_reports_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "PROGRESS_SECONDS", 0.05)
    log: list[str] = []
    script = "printf '1%%\\r2%%\\r'; sleep 0.6; echo end"
    output = child.run(child.Command("x", ["sh", "-c", script], dict(os.environ), lambda _: ""), log.append)
    assert output == ["1%", "2%", "end"]
    assert log[0] == "x ..."
    assert "x: 0 s, last output: 2%" in log
    assert log[-1] == "x: done in 1 s"


def test_children_get_no_settings_that_redirect_an_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_USER", "VIRTUAL_ENV"):
        monkeypatch.setenv(name, "elsewhere")
    environment = child.clean_environment(tmp_path / "tmp", HF_HUB_OFFLINE="1")
    assert "elsewhere" not in environment.values()
    assert environment["TMPDIR"] == str(tmp_path / "tmp")
    assert environment["HF_HUB_OFFLINE"] == "1"


def test_the_root_follows_the_xdg_rules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for ignored in ("", "relative/cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache.cache_root() == tmp_path / ".cache" / "motor"
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache.cache_root() == Path("/elsewhere/motor")


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a~b", "a.lock", ".."])
def test_a_name_that_could_be_something_else_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        cache.entry(name)


def test_two_makers_of_a_tiny_model_at_once_get_one_complete_folder(root: Path, start: Start) -> None:
    program = "import sys; from demo.tiny_model import main; sys.argv = ['', 'dense']; sys.exit(main())"
    makers = [start(program), start(program)]
    printed = {maker.communicate(timeout=PATIENCE)[0] for maker in makers}
    (folder,) = (Path(line.strip()) for line in printed)
    files = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(path.name for path in folder.iterdir()) == files
    assert sorted(path.name for path in root.iterdir()) == [folder.name, f"{folder.name}.lock"]


def test_a_tiny_model_has_the_same_weights_every_time(root: Path, tmp_path: Path) -> None:
    def digest() -> str:
        folder = tiny_model.ensure_dense_model(lambda _: None)
        return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()

    first = digest()
    cache.remove_tree(root)
    assert digest() == first


def test_the_byte_alphabet_has_a_character_of_its_own_for_each_byte() -> None:
    alphabet = tiny_model.byte_alphabet()
    assert len(set(alphabet)) == 256
    assert alphabet[ord("A")] == "A"
    assert alphabet[ord(" ")] == "Ġ"
    assert all(character.isprintable() for character in alphabet)
