"""The base of all sections of an experiment's YAML, and their fields that may be left out."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


def optional(description: str, **further: Any) -> Any:
    """A field that is None where nobody gives it."""
    return Field(default=None, description=description, **further)


class Section(BaseModel):
    """A part of an experiment: unknown keys and numbers that are not finite are errors.

    Values do not change after reading.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
