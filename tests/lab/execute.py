"""Executes the runs of an experiment's file as `./lab run` does, but for its report."""

import sys
from pathlib import Path

from testbed import experiment
from testbed.run import planning, runner
from testbed.training import prerequisites


def main() -> None:
    """Execute every run; an invalid one again, RETRIES times at most (0)."""
    path, results = sys.argv[1], Path(sys.argv[2])
    runs = experiment.load(path)
    needs = [run.training_need for run in runs if run.experiment.trains]
    prerequisites.prepare(needs, lambda *_: None)
    planning.extend(results, runs)
    retries = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    outcomes = []
    for run in runs:
        for outcome in runner.attempts(results, run, lambda record: None, retries=retries):
            print(f"{run.label}: {outcome.verdict}: {outcome.reason}")
        outcomes.append(outcome)
    sys.exit(any(outcome.verdict in ("failed", "invalid") for outcome in outcomes))


if __name__ == "__main__":
    main()
