"""Optimisers, learning rates and the pace of iterations."""

import time

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from testbed.training.lazy_adamw import LazyAdamW
from testbed.training.settings import OPTIMISERS, AnyPace, AnySchedule, Position
from testbed.training.state import build_optimiser
from testbed.training.worker import computing_s, wait_until_computed


def factors(section, *, rounds=10, rounds_per_epoch=2):
    schedule = TypeAdapter(AnySchedule).validate_python(section)
    return [
        schedule.factor(
            Position(round_number=number, rounds=rounds, rounds_per_epoch=rounds_per_epoch)
        )
        for number in range(rounds)
    ]


def test_schedules():
    assert factors({"kind": "constant"}) == [1.0] * 10
    cosine = factors({"kind": "cosine"}, rounds=11)
    assert cosine[0] == 1
    assert cosine[5] == pytest.approx(0.5)
    assert cosine[10] == pytest.approx(0)
    assert factors({"kind": "cosine", "final": 0.2})[9] == pytest.approx(0.2)
    warm = factors({"kind": "constant", "warmup_rounds": 3})
    assert warm[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])


@pytest.mark.parametrize(
    "section",
    [{"kind": "cosine", "final": 1}, {"kind": "constant", "warmup_rounds": -1}, {"kind": "poly"}],
)
def test_impossible_schedules_are_refused(section):
    with pytest.raises(ValidationError):
        factors(section)


@pytest.mark.parametrize("name", list(OPTIMISERS))
def test_every_optimiser_goes_downhill_with_the_rate_it_is_given(name):
    weight = torch.nn.Parameter(torch.tensor([3.0]))
    built = build_optimiser(name, [weight], learning_rate=0.01, momentum=0.5, weight_decay=0.0)
    for rate, moves in ((0.0, False), (0.02, True)):
        before = weight.detach().clone()
        built.param_groups[0]["lr"] = rate
        weight.grad = 2 * weight.detach()
        built.step()
        assert bool(weight < before) is moves


def paced(section, began_s):
    resolved = TypeAdapter(AnyPace).validate_python(section).model_dump(mode="json")
    return wait_until_computed(resolved, began_s, resolved.get("compute_s", 0.0))


def test_computing_times_vary_by_the_seed():
    def times_s(seed=1, rank=0, rounds=4000, **section):
        resolved = TypeAdapter(AnyPace).validate_python({"kind": "payload-only", **section})
        settings = resolved.model_dump(mode="json")
        return [
            computing_s(settings, seed=seed, rank=rank, round_number=number)
            for number in range(rounds)
        ]

    assert set(times_s(compute_s=0.5)) == {0.5}
    drawn = times_s(compute_s=0.5, spread=0.4)
    assert drawn == times_s(compute_s=0.5, spread=0.4)
    assert drawn[0] not in times_s(compute_s=0.5, spread=0.4, rank=1)
    logarithms = np.log(drawn)
    assert np.median(drawn) == pytest.approx(0.5, rel=0.03)
    assert np.std(logarithms) == pytest.approx(0.4, rel=0.05)


def test_a_paced_iteration_takes_its_time_and_says_when_it_took_more():
    began_s = time.monotonic()
    assert paced({"kind": "paced", "compute_s": 0.05}, began_s) == 0
    assert time.monotonic() - began_s >= 0.05
    assert paced({"kind": "paced", "compute_s": 0.01}, began_s) > 0.03
    assert paced("real", began_s - 100) == 0


def trained(optimiser, gradients, **options):
    weight = torch.nn.Parameter(torch.tensor([3.0, -2.0]))
    options = {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.0, **options}
    built = build_optimiser(optimiser, [weight], **options)
    after = []
    for gradient in gradients:
        weight.grad = torch.tensor(gradient)
        built.step()
        after.append(weight.detach().clone())
    return torch.stack(after)


def test_lazy_adamw_is_adamw_where_everything_comes():
    gradients = [[1.0, -2.0], [0.5, 3.0], [-4.0, 0.1], [0.2, 0.2]]
    ours = trained("lazy-adamw", gradients, weight_decay=0.3)
    torch.testing.assert_close(ours, trained("adamw", gradients, weight_decay=0.3))


def test_with_lazy_adamw_a_round_without_a_gradient_is_as_if_it_had_not_been():
    with_gaps = [[1.0, 1.0], [0.0, 2.0], [0.0, 3.0], [2.0, 0.0], [0.0, -4.0], [-3.0, 5.0]]
    moved = trained("lazy-adamw", with_gaps)
    dense = trained("lazy-adamw", [[1.0, 1.0], [2.0, 2.0], [-3.0, 3.0], [1.0, -4.0], [1.0, 5.0]])
    assert torch.equal(moved[[0, 3, 5], 0], dense[[0, 1, 2], 0])
    assert torch.equal(moved[[0, 1, 2, 4, 5], 1], dense[:, 1])
    assert torch.equal(moved[1, 0], moved[0, 0])
    assert trained("adamw", with_gaps)[1, 0] != trained("adamw", with_gaps)[0, 0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64])
def test_lazy_adamw_refuses_what_it_would_train_wrongly(dtype):
    weight = torch.nn.Parameter(torch.ones(2, dtype=dtype))
    weight.grad = torch.ones(2, dtype=dtype)
    with pytest.raises(TypeError, match="float32 or float64"):
        LazyAdamW([weight]).step()
    assert torch.equal(weight.detach(), torch.ones(2, dtype=dtype))


def test_lazy_adamw_decays_what_nothing_came_for():
    after = trained("lazy-adamw", [[0.0, 1.0]], weight_decay=0.5)
    assert after[0, 0].item() == pytest.approx(3.0 * 0.95)
