"""The training section of an experiment: what the workers compute, and how it is watched."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from testbed.shared.named_sections import folders
from testbed.shared.section import Section
from testbed.training import datasets, models
from testbed.training.datasets import AnyDataset, splits
from testbed.training.learning_rate import AnySchedule, ConstantRate
from testbed.training.optimisers import OPTIMISERS
from testbed.training.pace import AnyPace, RealPace


class Training(Section):
    """What the workers compute."""

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
        default="fail",
        description="whether the run fails or goes on without a lost worker",
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
    def _options_fit(self) -> "Training":
        if self.pace.kind == "payload-only":
            for key in ("target", "measure_every"):
                if getattr(self, key):
                    raise ValueError(f"{key}: nothing is learnt with pace 'payload-only'")
        return self
