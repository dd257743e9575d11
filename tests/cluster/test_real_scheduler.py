"""Sweeps on a real scheduler and worker processes of this machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import pytest

from testbed import experiment
from testbed.cluster.scheduler import Scheduler
from testbed.experiment import Run
from testbed.experiment.run import blocks
from testbed.run import planning
from testbed.run.runner import Outcome
from testbed.shared.input_error import InputError
from testbed.transport.net import keys

DEADLINE_S = 100.0  # tells a wait from one that never ends
_QUIET = {"DASK_LOGGING__DISTRIBUTED": "error"}


def until(true: Callable[[], Any]) -> Any:
    ends = time.monotonic() + DEADLINE_S
    while not (result := true()):
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.05)
    return result


class Loopback:
    def __init__(self, folder: Path, tls: dict[str, str] | None = None) -> None:
        self._folder, self._tls = folder, tls or {}
        self._file = folder / "scheduler.json"
        self.processes: list[subprocess.Popen[bytes]] = []
        self._start("scheduler", *(("--protocol", "tls") if tls else ()), "--port", "0")
        until(self._file.exists)
        self.address: str = until(self._read)["address"]

    def _read(self) -> Any:
        try:
            return json.loads(self._file.read_text())
        except ValueError:
            return None  # half written

    def _start(
        self, what: str, *options: str, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        own = self._folder / f"{what}-{len(self.processes)}"
        own.mkdir()
        log = (own / "log").open("wb")
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "dask", what),
                *("--scheduler-file", str(self._file), "--host", "127.0.0.1", "--no-dashboard"),
                *options,
            ],
            env={**os.environ, **_QUIET, **self._tls, **(environment or {})},
            cwd=own,
            stdout=log,
            stderr=log,
        )
        log.close()
        self.processes.append(process)
        return process

    def worker(
        self, *options: str, environment: dict[str, str] | None = None, resources: str = "lab=1"
    ) -> subprocess.Popen[bytes]:
        words = ("--no-nanny", "--nthreads", "1", "--resources", resources)
        return self._start("worker", *words, *options, environment=environment)

    def end(self) -> None:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGKILL)
            process.wait()


@contextmanager
def loopback(folder: Path, tls: dict[str, str] | None = None) -> Iterator[Loopback]:
    folder.mkdir()
    result = Loopback(folder, tls)
    try:
        yield result
    finally:
        result.end()


ROOT = Path(__file__).resolve().parents[2]
SWEEP = """
name: small
rounds: {rounds}
seeds: {seeds}
topology: {{ name: star, workers: 2, rate_bps: 100_000_000, queue_bytes: 150_000, delay_s: 0.001 }}
training:
  model: efficientnet-b0
  pace: {{ kind: payload-only, scale: 0.002, compute_s: 0.01 }}
arms: {{ dblp: {{ protocol: dblp }}, fixed-low: {{ protocol: fixed-low }} }}
"""


def sweep(folder: Path, *, rounds: int = 2, seeds: Sequence[int] = (1,)) -> list[Run]:
    path = folder / "small.yaml"
    path.write_text(SWEEP.format(rounds=rounds, seeds=list(seeds)))
    runs = [run.in_virtual_time() for run in experiment.load(str(path))]
    planning.extend(folder / "out", runs)
    return runs


def share_out(
    scheduler: Scheduler, runs: Sequence[Run], out: Path, lines: list[str]
) -> list[Outcome]:
    """As the command does, without its terminal and report."""
    ended: list[Outcome] = []
    left = scheduler.share_out(blocks(runs), out, end=ended.append, say=lines.append)
    assert left == []
    return ended


def children(process: subprocess.Popen[bytes]) -> list[int]:
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it has ended meanwhile
        if int(parent) == process.pid and state != "Z":
            pids.append(int(stat.parent.name))
    return pids


def test_a_sweep_survives_a_worker_that_is_killed(tmp_path, monkeypatch):
    runs, lines = sweep(tmp_path, seeds=[1, 2, 3]), list[str]()
    victims: list[int] = []

    def workers(self):
        if not victims and (pids := children(victim)):
            victims.extend(pids)
            victim.send_signal(signal.SIGKILL)
        return there(self)

    there = Scheduler.workers
    monkeypatch.setattr(Scheduler, "workers", workers)
    with loopback(tmp_path / "cluster") as cluster:
        scheduler = Scheduler(cluster.address).connect()
        victim = cluster.worker()
        cluster.worker()
        until(lambda: len(there(scheduler)) == 2)
        ended = share_out(scheduler, runs, tmp_path / "out", lines)
        scheduler.close()
    (block,) = victims
    until(lambda: not Path("/proc", str(block)).exists())  # the block died with its worker
    keys_of_all = sorted(run.key for run in runs)
    assert sorted(outcome.run.key for outcome in ended) == keys_of_all  # none twice
    assert {outcome.verdict for outcome in ended} == {"ok"}
    folders = [path.name for path in (tmp_path / "out" / "small").iterdir() if path.is_dir()]
    assert sorted(folders) == keys_of_all  # no attempt, nothing half fetched


@pytest.mark.long  # how one that lacks something is left out: test_sharing.py
def test_workers_that_cannot_are_named_in_a_line_each(tmp_path):
    """One has no lab, one the lab without a package, one another version, one no resource."""
    (run, *_), lines = sweep(tmp_path), list[str]()
    inherited = os.environ.get("PYTHONPATH", "")
    for name in ("testbed", "pydantic"):
        file = tmp_path / f"without-{name}" / name / "__init__.py"
        file.parent.mkdir(parents=True)
        file.write_text(f'raise ModuleNotFoundError("No module named {name!r}")')
    other = tmp_path / "other"
    for name in ("testbed", "controllers", "topologies", "analysis"):
        shutil.copytree(ROOT / name, other / name, ignore=shutil.ignore_patterns("__pycache__"))
    with (other / "controllers" / "timeline.py").open("a") as file:
        file.write("# changed\n")
    with loopback(tmp_path / "cluster") as cluster:
        cluster.worker(resources="other=1")
        for folder in (tmp_path / "without-testbed", tmp_path / "without-pydantic", other):
            path = os.pathsep.join(filter(None, (str(folder), inherited)))
            cluster.worker(environment={"PYTHONPATH": path})
        scheduler = Scheduler(cluster.address).connect()
        until(lambda: len(scheduler.workers()) == 3)  # and not the one without the resource
        with pytest.raises(InputError, match="no worker can execute this sweep: "):
            share_out(scheduler, [run], tmp_path / "out", lines)
        scheduler.close()
    assert len(lines) == 3
    for why in (
        "is left out: ModuleNotFoundError: No module named 'testbed'",
        "is left out: ModuleNotFoundError: No module named 'pydantic'",
        "is left out: has commit ",
    ):
        assert sum(why in line for line in lines) == 1, "\n".join(lines)


@pytest.fixture
def secured(tmp_path):
    """A scheduler and a worker that speak TLS, and Dask's configuration of this process."""
    names = ("scheduler", "worker", "client")
    keys.make(tmp_path / "keys", names)
    trusted = tmp_path / "keys" / "trusted.pem"
    certificates = [tmp_path / "keys" / f"{name}.crt" for name in names]
    trusted.write_text("".join(file.read_text() for file in certificates))
    settings = {"ca-file": str(trusted)}
    for name, file in zip(names, certificates, strict=True):
        settings |= {f"{name}.cert": str(file), f"{name}.key": str(file.with_suffix(".key"))}
    prefix = "distributed.comm.tls."
    environment = {
        "DASK_" + f"{prefix}{key}".upper().replace(".", "__").replace("-", "_"): value
        for key, value in settings.items()
    }
    with (
        loopback(tmp_path / "cluster", environment) as cluster,
        dask.config.set({f"{prefix}{key}": value for key, value in settings.items()}),
    ):
        yield cluster, cluster.worker()


@pytest.mark.long  # a worker that is killed goes through a real scheduler, too
def test_the_command_over_tls_until_its_scheduler_goes(secured, tmp_path, monkeypatch, in_process):
    cluster, worker = secured
    assert cluster.address.startswith("tls://")
    runs, lines = sweep(tmp_path), list[str]()
    words = [*("simulate", tmp_path / "small.yaml"), "--out", tmp_path / "there"]
    words += ["--arms", "dblp", "--scheduler", cluster.address]
    status, out, err = in_process(*words)
    assert status == 0, err
    assert "[1/1] dblp, seed 1: ok\n" in out
    status, out, err = in_process(*words)  # done: nobody is asked
    assert "[1/1] dblp, seed 1: ok (done before)" in out

    keys.make(tmp_path / "strange", ["client"])
    strange = {
        f"distributed.comm.tls.client.{kind}": str(tmp_path / "strange" / f"client.{suffix}")
        for kind, suffix in (("cert", "crt"), ("key", "key"))
    }
    with dask.config.set(strange), pytest.raises(InputError, match="no scheduler answers: "):
        Scheduler(cluster.address).connect()

    (tmp_path / "long").mkdir()
    long = sweep(tmp_path / "long", rounds=100_000)[:1]
    scheduler = Scheduler(cluster.address).connect()

    def interrupt(self):
        if children(worker):
            raise KeyboardInterrupt
        return there(self)

    there = Scheduler.workers
    with monkeypatch.context() as patched:
        patched.setattr(Scheduler, "workers", interrupt)
        with pytest.raises(KeyboardInterrupt):
            share_out(scheduler, long, tmp_path / "out", lines)
    scheduler.close()
    until(lambda: not children(worker))

    scheduler = Scheduler(cluster.address).connect()
    cluster.processes[0].send_signal(signal.SIGKILL)
    with pytest.raises(InputError, match="the scheduler has gone; what came back stays"):
        share_out(scheduler, runs, tmp_path / "out", lines)
    scheduler.close()
