"""The base of all sections of an experiment's YAML."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of an experiment: unknown keys are errors, values do not change after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)
