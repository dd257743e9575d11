"""Which processes of a lab are sampled, and by what name."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from testbed.verdict.processes import ProcessSampler


@pytest.fixture
def sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProcessSampler:
    """One host, whose namespace is the test's own; it scans at every sample."""
    for name in ("INTERVAL_S", "_SCAN_S"):
        monkeypatch.setattr(f"testbed.verdict.processes.{name}", 0.0)
    return ProcessSampler(tmp_path, {"h1": {"pid": os.getpid()}}, {})


HOLDS_TWO = """
from testbed.lab.kernel import namespaces
print(namespaces.hold("h1"), namespaces.hold("h2"), flush=True)
input()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: needs root")
def test_workers_that_share_a_process_are_sampled_by_their_threads(tmp_path, sampler):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS_TWO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as shared:
        assert shared.stdout is not None and shared.stdin is not None
        numbers = shared.stdout.readline().split()
        hosts = {f"h{rank}": {"pid": int(number)} for rank, number in enumerate(numbers, 1)}
        sampler = ProcessSampler(tmp_path, hosts, {"training": os.getpid()})
        sampler._ignored.clear()  # here they are the workers as well
        for _ in range(8):
            sampler.sample()
        of_shared = {name: each for name, each in sampler.latest.items() if name in hosts}
        assert set(of_shared) == {"h1", "h2"}
        memory = [resident_bytes for _, _, resident_bytes in of_shared.values()]
        resident = Path(f"/proc/{shared.pid}/statm").read_text().split()[1]
        assert sum(memory) == pytest.approx(int(resident) * os.sysconf("SC_PAGE_SIZE"), rel=0.05)
        assert not [name for name in sampler.latest if name.startswith("-c")]
        shared.stdin.write("\n")


def test_each_sample_has_its_process_and_its_host_and_a_shell_the_program_that_it_becomes(
    sampler: ProcessSampler, tmp_path: Path
):
    argv = ["sh", "-c", "read line; exec sleep 3600"]
    with (
        subprocess.Popen(["sleep", "3600"]) as of_lab,
        subprocess.Popen(argv, stdin=subprocess.PIPE, text=True) as shell,
    ):
        try:
            sampler._named[of_lab.pid] = "part-of-the-lab"
            for _ in range(3):
                sampler.sample()
            assert shell.stdin is not None
            shell.stdin.write("\n")
            shell.stdin.close()
            words = Path(f"/proc/{shell.pid}/cmdline")
            deadline_s = time.monotonic() + 10
            while not words.read_bytes().startswith(b"sleep") and time.monotonic() < deadline_s:
                time.sleep(0.01)
            for _ in range(3):
                sampler.sample()
            sampler.write(tmp_path / "processes.parquet", last=True)
        finally:
            for process in (of_lab, shell):
                process.kill()
    names: dict[int, set[tuple[str, str | None]]] = {of_lab.pid: set(), shell.pid: set()}
    for sample in pl.read_parquet(tmp_path / "processes.parquet").iter_rows(named=True):
        if sample["pid"] in names:
            names[sample["pid"]].add((sample["name"].partition(".")[0], sample["host"]))
    assert names == {of_lab.pid: {("part-of-the-lab", None)}, shell.pid: {("h1:sleep", "h1")}}
