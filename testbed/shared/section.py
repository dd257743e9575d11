"""The base of all sections of an experiment's YAML."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of an experiment, frozen; unknown keys and numbers that are not finite are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
