"""`./lab clean`: removes what nobody uses, says what before, and touches nothing else."""

import io
import os
import signal
import subprocess
import sys
import time

import pytest

from testbed.lab import leftovers
from testbed.machine import clean
from testbed.shared import run_directory

KEY = "dblp-s1-0123456789"

# Executes a run that never ends: the directory is made and locked as by `./lab run`.
RUN = """
import pathlib, sys, time
from testbed.shared.run_directory import RunDirectory
with RunDirectory(pathlib.Path(sys.argv[1])).open({"key": "x"}) as directory:
    (directory / "events" / "rounds.jsonl").write_text("x" * 5000)
    print("open", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def going_on(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path / "out" / "small" / KEY)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    yield process
    process.kill()
    process.wait()


def test_a_killed_run_is_shown_with_its_size_and_removed_after_asking(
    going_on, tmp_path, in_process, monkeypatch
):
    out = tmp_path / "out"
    partial = out / "small" / f"{KEY}.partial"
    going_on.send_signal(signal.SIGKILL)
    going_on.wait()

    monkeypatch.setattr("sys.stdin", io.StringIO("n\ny\n"))
    status, printed, _ = in_process("clean", "--out", out)
    assert status == 1
    assert str(partial) in printed
    assert "1.1 MB" in printed  # what it wrote, and the space that it held for its verdict
    assert partial.is_dir()

    status, _, err = in_process("clean", "--out", out)
    assert status == 0, err
    assert not partial.exists()
    for folder in (out, tmp_path / "none"):
        status, printed, _ = in_process("clean", "--out", folder)
        assert status == 0 and "nothing to clean" in printed
    assert not (tmp_path / "none").exists()


def test_a_run_that_goes_on_is_never_touched(going_on, tmp_path, in_process):
    out = tmp_path / "out"
    (out / "small" / "plan.json").write_text("{}")
    status, _, err = in_process("clean", "--out", out, "--yes")
    assert status == 0, err
    assert (out / "small" / f"{KEY}.partial").is_dir()
    status, _, err = in_process("clean", "small", "--out", out, "--yes")
    assert status == 2
    assert "this run is going on" in err
    assert (out / "small" / f"{KEY}.partial").is_dir()
    assert going_on.poll() is None
    status, _, err = in_process("explain", out / "small" / f"{KEY}.partial")
    assert status == 2
    assert err.strip().endswith("this run is going on")


def test_only_what_the_lab_itself_leaves_is_stale(tmp_path, in_process):
    out = tmp_path / "out"
    stale = [f"small/{KEY}.attempt1", f"small/{KEY}.attempt12", ".report-abcdefgh"]
    stale += ["small/.fetched-abcdefgh", "small/.report-old-abcdefgh"]
    written = [".report-written0", "small/.fetched-written0"]  # at this moment
    kept = [
        f"small/{KEY}",
        "small/notes.partial",
        f"small/deeper/{KEY}.partial",
        ".report-old-abcdefgh",  # the last whole report
        "reports.partial",
        "small/report",
        *written,
    ]
    for name in (*stale, *kept):
        (out / name).mkdir(parents=True)
    old_s = time.time() - 3600
    for name in (*stale[2:], ".report-old-abcdefgh"):
        os.utime(out / name, (old_s, old_s))
    (tmp_path / "elsewhere").mkdir()
    (out / "small" / f"{KEY}.attempt3").symlink_to(tmp_path / "elsewhere")

    assert {str(folder.relative_to(out)) for folder in clean.stale_folders(out)} == set(stale)
    status, _, err = in_process("clean", "--out", out, "--yes")
    assert status == 0, err
    assert not any((out / name).exists() for name in stale)
    assert all((out / name).is_dir() for name in kept)
    assert (tmp_path / "elsewhere").is_dir()


@pytest.mark.parametrize("name", ["first", KEY])
def test_a_run_that_a_kill_has_left_is_explained_and_removed_by_its_folder(
    tmp_path, in_process, name
):
    """A script names its folder as it likes, and it lies where it likes."""
    open_and_die = RUN.replace('{"key": "x"}', '{"key": "x", "adjustable": True}').replace(
        "time.sleep(60)", "import os; os.kill(os.getpid(), 9)"
    )
    place = tmp_path / "out" / name
    dead = subprocess.run(
        [sys.executable, "-c", open_and_die, str(place)], capture_output=True, check=False
    )
    assert dead.returncode == -signal.SIGKILL
    partial = tmp_path / "out" / f"{name}.partial"
    for named in (place, partial):
        status, printed, err = in_process("explain", named)
        assert status == 0, err
        assert f"{partial.name}: interrupted" in printed
        assert "the command ended without a verdict" in printed
        assert "Try again (the same script)." in printed
    for place in (tmp_path / "out", partial):
        assert [*clean.stale_folders(place)] == [partial]
    status, _, err = in_process("clean", partial, "--yes")
    assert status == 0, err
    assert not partial.exists()


def test_a_scripts_earlier_result_is_of_use_where_it_was_ok(tmp_path):
    for name, verdict in (("first.attempt1", "ok"), ("first.attempt2", "invalid")):
        (tmp_path / name).mkdir()
        run_directory.write_json(tmp_path / name / "config.json", {"adjustable": True})
        run_directory.write_json(tmp_path / name / "status.json", {"verdict": verdict})
    assert [folder.name for folder in clean.stale_folders(tmp_path)] == ["first.attempt2"]


# Starts a child in the environment of a sandbox, says its process id, and then waits or is gone.
OWNER = """
import os, subprocess, sys
from testbed.lab import leftovers
environment = os.environ | {leftovers.OWNER_VARIABLE: leftovers.owner_of_now()}
child = subprocess.Popen(["sleep", "60"], env=environment, start_new_session=True)
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_a_process_is_left_over_once_its_owner_is_gone():
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert pid not in {process.pid for process in leftovers.find()}
        owner.kill()
    ours = [process for process in leftovers.find() if process.pid == pid]
    assert [our.cmdline() for our in ours] == [["sleep", "60"]]
    assert leftovers.end(ours) == []
    assert pid not in {process.pid for process in leftovers.find()}
