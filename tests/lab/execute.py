"""Executes the runs of an experiment's file as `./lab run` does, but for its report."""

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from testbed import experiment
from testbed.run import planning, runner
from testbed.training import prerequisites
from testbed.training.datasets import baselines  # noqa: F401 - here, and not in each fork

_FORKS = multiprocessing.get_context("fork")


def execute(path: str, results: Path, *, retries: int = 0, capture: Sequence[str] = ()) -> None:
    """Execute every run; an invalid one again, `retries` times at most. Exits as `./lab run`."""
    runs = experiment.load(path)
    needs = [run.training_need for run in runs if run.experiment.trains]
    prerequisites.prepare(needs, lambda *_: None)
    planning.extend(results, runs)
    outcomes = []
    for run in runs:
        tries = runner.attempts(results, run, lambda _: None, capture=capture, retries=retries)
        for outcome in tries:
            print(f"{run.label}: {outcome.verdict}: {outcome.reason}")
        outcomes.append(outcome)
    sys.exit(any(outcome.verdict in ("failed", "invalid") for outcome in outcomes))


def start(path: Path, results: Path, environment: Mapping[str, str], **options: Any) -> BaseProcess:
    """Execute them in a fork, which saves the three seconds that a new process imports for."""

    def forked() -> None:
        os.environ.update(environment)
        torch.set_num_threads(1)  # a fork has none of this process's threads
        execute(str(path), results, **options)

    process = _FORKS.Process(target=forked)
    process.start()
    return process


if __name__ == "__main__":
    execute(sys.argv[1], Path(sys.argv[2]))
