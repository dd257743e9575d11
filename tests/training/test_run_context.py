"""Every host of a run derives the same from its configuration."""

from pathlib import Path
from typing import Any

import pytest

from testbed.training import models
from testbed.training.fillings import Rescale, Zero
from testbed.training.settings import Training
from testbed.training.state import ModelAndData, RunContext
from testbed.transport import Leg, preset

HOSTS = {"server": "10.0.0.1", "worker-1": "10.0.0.2", "worker-2": "10.0.0.3"}


def context(seed: int = 1, rounds: int = 3, **training: Any) -> RunContext:
    config: dict[str, Any] = {
        "rounds": rounds,
        "phases": {"detector": "gradient-norm", "eta": 0.5, "cadence": "epoch"},
        "seed": seed,
        "impairments": [],
        "protocol": preset("dblp", order="shuffled").describe(),
        "filling": {"gather": "rescale", "broadcast": "zero"},
        "training": Training(**training).model_dump(mode="json"),
        "transport": {"chunk_bytes": 1456, "pace": 0.9, "quantum_s": 2e-3, "peer_timeout_s": 30.0},
    }
    return RunContext(
        directory=Path("/nowhere"),
        addresses=HOSTS,
        fair_shares_bps={"worker-1": 4 * 10**7, "worker-2": 5 * 10**7},
        fair_queues_bytes={"worker-1": 75e3, "worker-2": 50e3},
        controller_socket=Path("/nowhere"),
        coordination_socket=Path("/nowhere"),
        session=1,
        model_and_data=ModelAndData(config),
    )


def test_each_leg_has_its_own_filling():
    assert context().filling(Leg.GATHER) == Rescale()
    assert context().filling(Leg.BROADCAST) == Zero()


def test_hosts_have_their_share_of_the_narrowest_link_and_the_smallest_queue():
    ends = {host: context().endpoint(host) for host in HOSTS}
    rates = {host: end.rate_bps for host, end in ends.items()}
    assert rates == {"server": 36_000_000, "worker-1": 36_000_000, "worker-2": 45_000_000}
    queues = {host: end.queue_bytes for host, end in ends.items()}
    assert queues == {"server": 50e3, "worker-1": 75e3, "worker-2": 50e3}
    assert {end.quantum_s for end in ends.values()} == {2e-3}


def test_random_choices_follow_from_the_run_s_seed_and_the_host():
    first, again, other = (
        [context(seed=seed).endpoint(host).seed for host in HOSTS] for seed in (5, 5, 6)
    )
    assert first == again
    assert len({*first, *other}) == 2 * len(HOSTS)


def test_what_happens_after_which_round():
    at = context(rounds=8, evaluate_every=3, measure_every=5)
    assert [number for number in range(8) if at.evaluates_after(number)] == [0, 3, 6, 7]
    assert [number for number in range(8) if at.measures_after(number)] == [0, 5, 7]


def test_the_learning_rate_follows_its_schedule():
    at = context(rounds=11, learning_rate=0.1, schedule={"kind": "cosine"})
    rates = [at.learning_rate(number) for number in (0, 5, 10)]
    assert rates == pytest.approx([0.1, 0.05, 0])


@pytest.mark.parametrize(
    "training",
    [
        {"pace": "payload-only", "target": 0.9},
        {"pace": {"kind": "paced"}},
        {"optimiser": "lamb"},
        {"on_worker_loss": "ignore"},
    ],
)
def test_impossible_training_is_refused(training):
    with pytest.raises(ValueError, match=r"validation error"):
        context(**training)


def test_a_run_that_computes_builds_its_model_before_its_workers_fork(own_cache, monkeypatch):
    """Otherwise each worker would import it again; a cached layer map imports nothing."""
    built, build = [], models.build

    def noting(name, *arguments, **options):
        built.append(name)
        return build(name, *arguments, **options)

    monkeypatch.setattr(models, "build", noting)
    models.layer_map("mlp")
    for number in (2, 3):
        context(model="mlp").model_and_data.load()
        assert built == number * ["mlp"]
    context(model="mlp", pace={"kind": "payload-only"}).model_and_data.load()
    assert len(built) == 3
