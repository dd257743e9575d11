"""Optimisers by name: torch's own, with the options that an experiment sets.

To add one: its name in `Name`, the options that it takes in `OPTIONS`, a line in `build`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch

Name = Literal["sgd", "nesterov", "adam", "adamw", "rmsprop"]

# Which of the training section's keys each one understands, beside the learning rate.
OPTIONS: dict[str, tuple[str, ...]] = {
    "sgd": ("momentum", "weight_decay"),
    "nesterov": ("momentum", "weight_decay"),
    "adam": ("weight_decay",),
    "adamw": ("weight_decay",),
    "rmsprop": ("momentum", "weight_decay"),
}


def build(
    name: str,
    parameters: Iterable[torch.nn.Parameter],
    *,
    learning_rate: float,
    momentum: float,
    weight_decay: float,
) -> torch.optim.Optimizer:
    """The optimiser `name`; options that it does not understand (see `OPTIONS`) are left out.

    Raises:
        ValueError: unknown name, or options that contradict each other.
    """
    if name not in OPTIONS:
        raise ValueError(f"unknown optimiser {name!r}; valid: {', '.join(OPTIONS)}")
    if name == "nesterov" and momentum <= 0:
        raise ValueError("optimiser 'nesterov' needs a momentum above 0")
    given = {"momentum": momentum, "weight_decay": weight_decay}
    options: dict[str, Any] = {key: given[key] for key in OPTIONS[name]}
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "sgd": torch.optim.SGD,
        "nesterov": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "rmsprop": torch.optim.RMSprop,
    }
    if name == "nesterov":
        options["nesterov"] = True
    return kinds[name](parameters, lr=learning_rate, **options)


def set_rate(optimiser: torch.optim.Optimizer, learning_rate: float) -> None:
    """The learning rate of the next step."""
    for group in optimiser.param_groups:
        group["lr"] = learning_rate
