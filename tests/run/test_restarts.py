"""Workers whose process died are started again, so often and no more, while the server lives."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import pytest

from testbed.run import training_children
from testbed.run.training_children import ANOTHERS_FAULT, OWN_FAULT, Restarts
from testbed.shared import failure, jsonl, run_directory


class Scene:
    """Children that end as they are told to."""

    def __init__(self, directory):
        for name in ("logs", "events"):
            (directory / name).mkdir()
        run_directory.write_json(directory / "config.json", {"impairments": []})
        self.directory = directory
        self.children: dict[int, str] = {}
        self.forked: list[int] = []
        self.lives: dict[str, list[int]] = {}  # exit statuses, or signals below 0
        self.restarted: list[str] = []

    def fork(self, name, live):
        child = os.fork()
        if not child:
            try:
                live()
            finally:
                os._exit(99)
        self.forked.append(child)
        return child

    def server(self, until, status=0):
        """A server that ends with this status once `until` is true of what is on disk."""

        def live():
            while not until():
                time.sleep(0.01)
            _end(status)

        self.children[self.fork("server", live)] = "server"

    def worker(self, name, *ends):
        """A worker whose first process and the later ones end like this."""
        self.lives[name] = list(ends)
        self.children[self._live(name)] = name

    def _live(self, name):
        end = self.lives[name].pop(0)

        def live():
            if end == ANOTHERS_FAULT:
                reason = training_children.reason_of(self.directory, name)
                reason.write_text(f"{name}: lost server: silent\n")
            _end(end)

        return self.fork(name, live)

    def restart(self, name):
        self.restarted.append(name)
        return self._live(name)

    def wait(self, *, most=3, after_s=0.0):
        restarts = Restarts(most=most, after_s=after_s, restart=self.restart)
        return training_children.wait(
            self.children, self.directory, outlive=True, restarts=restarts
        )

    def lost(self):
        path = self.directory / "logs" / run_directory.LOST_WORKERS
        return path.read_text().splitlines() if path.exists() else []

    def log(self):
        return jsonl.read(self.directory / "events" / run_directory.RESTARTS)


@pytest.fixture
def scene(tmp_path, monkeypatch):
    monkeypatch.setattr(failure, "where", lambda pid, log: "")  # these would not answer
    made = Scene(tmp_path)
    yield made
    for pid in made.forked:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _end(status):
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)


KILLED = -signal.SIGKILL


def test_a_killed_worker_is_started_again_after_a_pause_and_that_is_on_record(scene):
    scene.server(until=scene.log)
    scene.worker("worker-2", KILLED, 0)
    assert scene.wait(after_s=0.3) == 0
    assert scene.restarted == ["worker-2"]
    (record,) = scene.log()
    assert record["process"] == "worker-2"
    assert record["why"] == "killed by SIGKILL"
    assert record["restart"] == 1
    assert record["pid"] == scene.forked[-1]
    assert record["restarted_s"] - record["ended_s"] >= 0.3
    assert scene.lost() == []


def test_so_is_one_that_lost_the_server_while_the_server_goes_on(scene):
    scene.server(until=lambda: len(scene.log()) == 2)
    scene.worker("worker-2", ANOTHERS_FAULT, KILLED, 0)
    assert scene.wait() == 0
    found = [(each["why"], each["restart"]) for each in scene.log()]
    assert found == [("lost server: silent", 1), ("killed by SIGKILL", 2)]
    assert not training_children.reason_of(scene.directory, "worker-2").exists()


def test_one_that_dies_again_and_again_stays_lost_and_that_counts_for_it_alone(scene):
    scene.server(until=lambda: scene.lost() and len(scene.log()) == 4)
    scene.worker("worker-1", KILLED, KILLED, 0)
    scene.worker("worker-2", KILLED, KILLED, KILLED, 0)
    assert scene.wait(most=2) == 0
    assert sorted(scene.restarted) == ["worker-1"] * 2 + ["worker-2"] * 2
    assert scene.lost() == ["worker-2: killed by SIGKILL"]


def test_an_error_of_its_own_still_fails_the_run(scene):
    scene.server(until=lambda: False)
    scene.worker("worker-2", OWN_FAULT, 0)
    assert scene.wait() == 1
    assert scene.restarted == []
    said = training_children.reason_of(scene.directory, "training").read_text()
    assert said == "worker-2: ended with status 1\n"


@pytest.mark.parametrize("status", [KILLED, OWN_FAULT])
def test_nobody_comes_back_to_a_dead_server(scene, status):
    """The run ends with the server's reason, and does not wait for the restart that is due."""
    scene.server(until=lambda: True, status=status)
    scene.worker("worker-2", KILLED, 0)
    for pid in scene.forked:  # whoever was first
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert scene.wait(after_s=3600) == 1
    assert scene.restarted == []
    said = training_children.reason_of(scene.directory, "training").read_text()
    words = "killed by SIGKILL" if status < 0 else "ended with status 1"
    assert said == f"server: {words}\n"


def test_one_that_comes_too_late_is_no_failure(scene):
    ended = scene.directory / "ended"
    scene.server(until=lambda: True)

    def late():
        while not ended.exists():
            time.sleep(0.01)
        _end(ANOTHERS_FAULT)

    scene.children[scene.fork("worker-2", late)] = "worker-2"
    os.waitid(os.P_PID, scene.forked[0], os.WEXITED | os.WNOWAIT)
    ended.touch()
    assert scene.wait() == 0
    assert scene.log() == []
    assert scene.lost() == []
