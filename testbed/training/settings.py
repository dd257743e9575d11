"""The training section of an experiment: what the workers compute, and how it is watched.

To add a learning-rate schedule or an optimiser: a line in `SCHEDULES` or `OPTIMISERS`; or a file of
your own, `schedule: {kind: ./mine.py}` with a `Schedule`, `optimiser: ./mine.py` with a subclass of
`torch.optim.Optimizer`, which is given those of `lr`, `momentum` and `weight_decay` that it takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from testbed.shared.named_sections import OneOf, folders
from testbed.shared.problems import Section
from testbed.shared.registry import Registry
from testbed.training import datasets, models
from testbed.training.datasets import AnyDataset, splits

if TYPE_CHECKING:
    import torch

OPTIMISERS: Registry[torch.optim.Optimizer] = Registry(
    "optimiser",
    {
        "sgd": "torch.optim:SGD",
        "adam": "torch.optim:Adam",
        "adamw": "torch.optim:AdamW",
        "lazy-adamw": "testbed.training.lazy_adamw:LazyAdamW",
        "rmsprop": "torch.optim:RMSprop",
    },
    own="Optimiser",
    base="torch.optim:Optimizer",
)


@dataclass(frozen=True, kw_only=True)
class Position:
    """A point of the training: `round_number` of `rounds`, with `rounds_per_epoch` in an epoch."""

    round_number: int
    rounds: int
    rounds_per_epoch: int


class Schedule(Section):
    """The common part of all schedules."""

    kind: str
    warmup_rounds: int = Field(default=0, ge=0, description="linear rise from 0 before all else")

    def factor(self, at: Position) -> float:
        if at.round_number < self.warmup_rounds:
            return (at.round_number + 1) / (self.warmup_rounds + 1)
        return self._factor(at)

    def _factor(self, at: Position) -> float:
        raise NotImplementedError


class ConstantRate(Schedule):
    """The same rate in all rounds."""

    kind: Literal["constant"] = "constant"

    def _factor(self, at: Position) -> float:
        return 1.0


class CosineRate(Schedule):
    """Half a cosine from 1 down to `final` in the last round."""

    kind: Literal["cosine"]
    final: float = Field(default=0.0, ge=0, lt=1, description="the last round's factor")

    def _factor(self, at: Position) -> float:
        span = max(1, at.rounds - 1 - self.warmup_rounds)
        share_done = min(1.0, (at.round_number - self.warmup_rounds) / span)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * share_done)) / 2


SCHEDULES: Registry[Schedule] = Registry(
    "learning-rate schedule", {"constant": ConstantRate, "cosine": CosineRate}, base=Schedule
)
AnySchedule = Annotated[Schedule, OneOf(SCHEDULES, key="kind", base=Schedule)]


# The pace of iterations. A laptop and its emulated links are slower than the paper's; only the
# ratio of computing to communicating carries over, which `paced` sets.


class RealPace(Section):
    """Iterations take what the machine needs."""

    kind: Literal["real"] = "real"


class _Varying(Section):
    """Iterations whose times differ, from worker to worker and round to round."""

    spread: float = Field(
        default=0.0,
        ge=0,
        le=3,
        description="standard deviation of the logarithm of each iteration's time, whose median is "
        "compute_s; drawn by the seed",
    )


class PacedIterations(_Varying):
    """Every iteration computes for `compute_s`; a slower machine overruns, which is reported."""

    kind: Literal["paced"]
    compute_s: float = Field(gt=0, le=3600, description="computing time of each iteration")


class PayloadOnly(_Varying):
    """Nothing is computed: payloads have the model's exact size and layers, and random content.

    Every iteration lasts `compute_s` all the same. For latencies with models that are too large to
    train here; there is no accuracy.
    """

    kind: Literal["payload-only"]
    compute_s: float = Field(
        default=0.0, ge=0, le=3600, description="pause of each iteration in place of computing"
    )
    scale: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="each layer's size is multiplied with it: less than 1 suits slow links",
    )
    workers_per_process: int | None = Field(
        default=None,
        ge=1,
        le=256,
        description="how many workers share a process, each in its own host's network; unless "
        "given, up to 16 workers have a process each, and more share them, 32 in each",
    )


PACES: Registry[Section] = Registry(
    "pace", {"real": RealPace, "paced": PacedIterations, "payload-only": PayloadOnly}
)
AnyPace = Annotated[
    RealPace | PacedIterations | PayloadOnly, OneOf(PACES, key="kind", base=Section, by_name=True)
]


class Training(Section):
    """The training that the workers compute."""

    model: str = Field(
        default="small-cnn", examples=list(models.MODELS), description="what is trained"
    )
    dataset: AnyDataset = Field(
        default=datasets.DEFAULT,
        description="what it is trained on: a name, or a mapping with options",
    )
    split: splits.AnySplit = Field(
        default=splits.Equal(), description="which worker gets which examples"
    )
    batch_size: int = Field(default=32, ge=1, description="samples per worker and round")
    optimiser: str = Field(
        default="sgd",
        examples=list(OPTIMISERS),
        description="what applies the mean gradient at a worker",
    )
    learning_rate: float = Field(
        default=0.05, gt=0, le=1000, description="before the schedule's factor"
    )
    momentum: float = Field(
        default=0.9, ge=0, lt=1, description="of sgd and rmsprop; beta 1 of lazy-adamw"
    )
    weight_decay: float = Field(default=0.0, ge=0, description="as torch's optimisers define it")
    schedule: AnySchedule = Field(
        default=ConstantRate(),
        description="what the learning rate is multiplied with in each round",
    )
    pace: AnyPace = Field(default=RealPace(), description="how long an iteration computes")
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="where the workers compute")
    evaluate_every: int = Field(default=5, ge=1, description="rounds between evaluations")
    evaluate_on: Literal["test", "validation"] = Field(
        default="test",
        description="`validation`: some of the training part, which nobody then trains on",
    )
    target: float | None = Field(
        default=None, gt=0, description="accuracy (or perplexity); reports say when it is reached"
    )
    measure_every: int = Field(
        default=0, ge=0, description="rounds between measurements of the effects of loss; 0: never"
    )
    on_worker_loss: Literal["fail", "continue"] = Field(
        default="fail", description="whether the run fails or goes on without a lost worker"
    )

    @field_validator("model")
    @classmethod
    def _model_is_there(cls, name: str, info: ValidationInfo) -> str:
        return models.BUILDERS.locate(name, folders(info))

    @field_validator("optimiser")
    @classmethod
    def _optimiser_is_there(cls, name: str, info: ValidationInfo) -> str:
        located = OPTIMISERS.locate(name, folders(info))
        if located not in OPTIMISERS:
            OPTIMISERS.entry(located)
        return located

    @model_validator(mode="after")
    def _options_fit(self) -> Training:
        if self.pace.kind == "payload-only":
            for key in ("target", "measure_every"):
                if getattr(self, key):
                    raise ValueError(f"{key}: nothing is learnt with pace 'payload-only'")
        entry = models.MODELS.get(self.model)
        takes, gives = entry.inputs if entry else None, self.dataset.inputs
        if takes and gives and takes != gives:
            fit = [name for name, model in models.MODELS.items() if model.inputs == gives]
            raise ValueError(
                f"model: {self.model!r} takes {takes}, but data set {self.dataset.name!r} gives "
                f"{gives}; valid: {', '.join(fit)}, ./FILE.py"
            )
        return self
