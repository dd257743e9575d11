"""Measures how long a run's workers compute, by doing a little of it here and now."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from testbed.experiment import Run
from testbed.shared.input_error import InputError

_MOST_S = 0.2  # of measuring one kind of step, which is done once at least
_EVALUATED = 64  # examples


@dataclass(frozen=True)
class Computing:
    """What one worker needs on a processor of its own, in seconds.

    Attributes:
        step_s: the gradient of a batch, and applying an update.
        evaluation_s: evaluating on all test examples.
    """

    step_s: float
    evaluation_s: float

    def of_run_s(self, run: Run) -> float:
        """All steps and evaluations of a run, with the workers sharing the processors.

        Where the pace gives a computing time, steps count as far as they exceed it.
        """
        training, rounds = run.experiment.training, run.experiment.rounds
        crowd = max(1.0, run.experiment.topology.workers / (os.cpu_count() or 1))
        given_s = getattr(training.pace, "compute_s", 0.0)
        every = training.evaluate_every
        evaluations = -(-rounds // every) + 1 if every else 0
        step_s = max(0.0, self.step_s * crowd - given_s)
        return rounds * step_s + evaluations * self.evaluation_s * crowd

    def one_by_one_s(self, run: Run) -> float:
        """All steps and evaluations of a run whose workers share one processor, as simulated."""
        training, rounds = run.experiment.training, run.experiment.rounds
        evaluations = -(-rounds // training.evaluate_every) + 1
        each_s = rounds * self.step_s + evaluations * self.evaluation_s
        return run.experiment.topology.workers * each_s


NOTHING = Computing(step_s=0.0, evaluation_s=0.0)


def of_runs(runs: Iterable[Run], say: Callable[[str], None]) -> list[Computing | None]:
    """Measure for each run; equal ones are measured once.

    Args:
        runs: whose models are built and whose data are loaded.
        say: is told of work that takes seconds.

    Returns:
        None for a run that cannot be measured here: its data are missing, or do not fit its model.
    """
    known: dict[str, Computing | None] = {}
    found = []
    for run in runs:
        training = run.experiment.training
        fields = {"model", "dataset", "optimiser", "batch_size", "pace", "device"}
        described = training.model_dump(mode="json", include=fields)
        text = json.dumps([described, run.experiment.topology.workers, str(run.folder)])
        if text not in known:
            if training.pace.kind == "payload-only":
                known[text] = NOTHING
            else:
                say(f"measuring how long {training.model} computes")
                known[text] = _measured_apart(run)
        found.append(known[text])
    return found


def _measured_apart(run: Run) -> Computing | None:
    """As `_measured`, in a fork: runs that this process forks begin before torch has computed."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            found = _measured(run)
            said = "" if found is None else json.dumps([found.step_s, found.evaluation_s])
            os.write(writing, said.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        said = told.read()
    os.waitpid(child, 0)
    return Computing(*json.loads(said)) if said else None


def _measured(run: Run) -> Computing | None:
    import torch

    from testbed.training.run_context import RunContext

    hosts = run.experiment.topology.host_names()
    context = RunContext.without_network(run.config(), hosts)
    model_and_data = context.model_and_data
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a run
    try:
        data = model_and_data.dataset
        learner = context.learner(context.workers[0])
        update = np.zeros(context.layout.element_count, dtype=np.float32)

        def step() -> None:
            learner.gradient(update)
            learner.apply(update, 0.0)

        examples = slice(0, _EVALUATED)
        inputs, labels = data.test_inputs[examples], data.test_labels[examples]
        model = model_and_data.model(0)
        step_s = _shortest_s(step)
        some_s = _shortest_s(lambda: data.task.evaluate(model, inputs, labels))
    except InputError:
        return None
    finally:
        torch.set_num_threads(threads)
    return Computing(step_s=step_s, evaluation_s=some_s * len(data.test_labels) / len(labels))


def _shortest_s(work: Callable[[], object]) -> float:
    """The shortest time of several tries; the first one warms up, unless it takes long."""
    until_s = time.monotonic() + _MOST_S
    times: list[float] = []
    while len(times) < 2 or time.monotonic() < until_s:
        began_s = time.monotonic()
        work()
        times.append(time.monotonic() - began_s)
        if times[0] > _MOST_S:
            break
    return min(times)
