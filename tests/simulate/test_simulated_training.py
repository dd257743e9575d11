"""Training that computes, in virtual time: the lab's own learning, to the last bit."""

import functools

import numpy as np
import pytest
import torch

from testbed.cli.options import Selection
from testbed.run import simulating
from testbed.run.simulating import OwnRandomNumbers
from testbed.training.state import Learner
from tests.simulate.test_simulated_runs import executed, records
from tests.training.single_process import single_process_weights

EXPERIMENT = """
name: learning
rounds: 4
seeds: [1]
topology: { name: star, workers: 8, rate_bps: 100_000_000, delay_s: 0.001 }
training:
  batch_size: 16
  pace: { kind: paced, compute_s: 0.5 }
  evaluate_every: 2
  measure_every: 2
arms:
  reliable: { protocol: dblp, low: 0, high: 0 }
  lossy: { protocol: dblp, low: 0.3, high: 0.3 }
  timed: { protocol: optireduce, warm_up: 1 }
  coded:
    protocol: dblp
    low: 0.1
    high: 0.1
    codec: int4
    filling: { gather: error-feedback, broadcast: common-feedback }
  coded-tcp: { protocol: tcp, codec: int4 }
  tcp: { protocol: tcp }
  bits: { protocol: one-bit }
impairments:
  - { kind: loss, host: server, rounds: [1, 2, 3], q: 0.3 }
"""


@pytest.fixture
def trained(tmp_path):
    def train(arm, *settings):
        path = tmp_path / "learning.yaml"
        path.write_text(EXPERIMENT)
        chosen = Selection(name=str(path), arms=arm, settings=list(settings))
        (run,) = (run.in_virtual_time() for run in chosen.loaded())
        simulating.refuse(run)
        return executed(tmp_path / "out", run)

    return train


@functools.cache
def expected():
    torch.set_num_threads(1)
    return single_process_weights(
        rounds=4, workers=8, seed=1, batch_size=16, learning_rate=0.05, momentum=0.9
    )


def test_without_tolerance_it_learns_what_one_process_learns(trained):
    directory = trained("reliable")
    for rank in (1, 8):
        weights = torch.load(directory / f"weights-worker-{rank}.pt", weights_only=True)
        for name, tensor in weights.items():
            assert torch.equal(tensor, expected()[name]), name
    for record in records(directory, "training-worker-3.jsonl"):
        assert record["compute_s"] == pytest.approx(0.5)
        assert record["compute_overrun_s"] == 0
        assert (record["accuracy"] is not None) == (record["round"] in (0, 2, 3))


def test_with_tolerance_it_learns_something_else_and_losses_are_measured(trained):
    directory = trained("lossy")
    effects = records(directory, "effects.jsonl")
    assert [effect["round"] for effect in effects] == [0, 2, 3]
    assert effects[1]["gathered"] != effects[0]["gathered"]
    weights = torch.load(directory / "weights-worker-1.pt", weights_only=True)
    assert any(not torch.equal(tensor, expected()[name]) for name, tensor in weights.items())


@pytest.mark.parametrize(("arm", "chunks"), [("coded", 18), ("coded-tcp", 18), ("bits", 6)])
def test_replicas_learn_the_same_of_coded_gradients(trained, arm, chunks):
    directory = trained(arm, "rounds=24", "topology.workers=3", "training.evaluate_every=24")
    first, *others = (
        torch.load(directory / f"weights-worker-{rank}.pt", weights_only=True) for rank in (1, 2, 3)
    )
    for other in others:
        assert all(torch.equal(tensor, other[name]) for name, tensor in first.items())
    losses = [record["loss"] for record in records(directory, "training-worker-3.jsonl")]
    assert np.mean(losses[-5:]) < 0.6 * np.mean(losses[:5])
    legs = records(directory, "transfers-worker-2.jsonl")
    per_chunk = {18: 2 * 1452, 6: 26 * 384}[chunks]
    assert chunks == -(-sum(map(torch.numel, first.values())) // per_chunk)
    assert {leg["chunk_count"] for leg in legs} == {chunks}
    lacked = any(leg["chunks_received"] < chunks for leg in legs)
    assert lacked is (arm == "coded")


def test_after_the_warm_up_chunks_that_go_once_are_spread_over_the_gradient(trained):
    directory = trained("timed")
    sent = [
        record
        for record in records(directory, "transfers-worker-2.jsonl")
        if record["role"] == "sender" and record["leg"] == "gather"
    ]
    assert [record["chunks_sent"] for record in sent] == [sent[0]["chunk_count"]] * 4
    share = [record["chunks_received"] / record["chunk_count"] for record in sent]
    assert share[0] == 1
    assert share[1:] == pytest.approx([0.7] * 3, abs=0.15)
    effects = {record["round"]: record for record in records(directory, "effects.jsonl")}
    assert effects[0]["gathered"]["relative_error"] < 1e-5
    # 8 workers lose 30 %: noise of 0.3 / 0.7 of each gradient's energy.
    assert 0.1 < effects[2]["gathered"]["relative_error"] < 1.0


class Drawing(Learner):
    def __init__(self, seed):
        torch.manual_seed(seed)

    def gradient(self, into):
        into[:] = torch.rand(len(into)).numpy()


def test_learners_of_one_process_draw_as_in_processes_of_their_own():
    def alone(seed):
        learner, into = Drawing(seed), np.zeros((2, 5), np.float32)
        for row in into:
            learner.gradient(row)
        return into

    expected = [alone(seed) for seed in (1, 2)]
    torch.manual_seed(7)
    others = torch.get_rng_state()
    learners = [OwnRandomNumbers(functools.partial(Drawing, seed)) for seed in (1, 2)]
    gradients = np.zeros((2, 2, 5), np.float32)
    for number in range(2):
        for learner, into in zip(learners, gradients, strict=True):
            learner.gradient(into[number])
    assert np.array_equal(gradients, expected)
    assert torch.equal(torch.get_rng_state(), others)


class Counted(Drawing):
    """A learner whose evaluation is counted, and draws if it is told to."""

    def __init__(self, weights, counted, *, draws=False):
        super().__init__(1)
        self.model, self.counted, self.draws = weights, counted, draws

    def digest(self):
        return self.model

    def evaluate(self):
        self.counted.append(self.model)
        return float(torch.rand(1)) if self.draws else float(len(self.model))


@pytest.mark.parametrize("draws", [False, True])
def test_equal_replicas_are_evaluated_once_unless_their_evaluation_draws(draws):
    counted: list[str] = []
    evaluated: dict[str, float | None] = {}
    learners = [
        OwnRandomNumbers(
            functools.partial(Counted, weights, counted, draws=draws), evaluated=evaluated
        )
        for weights in ("same", "same", "other")
    ]
    values = [learner.evaluate() for learner in learners]
    assert counted == (["same", "same", "other"] if draws else ["same", "other"])
    torch.manual_seed(1)
    drawn = float(torch.rand(1))  # by each with its own numbers
    assert values == ([drawn] * 3 if draws else [4.0, 4.0, 5.0])


def test_kernel_tcp_has_the_least_timeout_of_the_experiment(trained):
    silence = "impairments=[{kind: loss, host: server, rounds: [1], q: 1, at_most_s: 0.06}]"
    ended_s = [
        records(trained("tcp", silence, *settings), "rounds.jsonl")[1]["gather_ended_s"]
        for settings in ([], ["transport.tcp_rto_min_s=5ms"])
    ]
    assert ended_s[1] < ended_s[0] - 0.05
