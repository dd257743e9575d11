"""Optimisers by name: torch's own and one of ours, with an experiment's options.

To add one: a line in `OPTIMISERS`; or a file of your own, `optimiser: ./mine.py`, with a subclass
of `torch.optim.Optimizer`. It is given those of `lr`, `momentum` and `weight_decay` that it takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from testbed.shared.registry import Registry

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


def build(
    name: str,
    parameters: Iterable[torch.nn.Parameter],
    *,
    learning_rate: float,
    momentum: float,
    weight_decay: float,
) -> torch.optim.Optimizer:
    """Build the optimiser `name`; leave out options that it does not take. ValueError."""
    return OPTIMISERS.build(
        name, {}, params=parameters, lr=learning_rate, momentum=momentum, weight_decay=weight_decay
    )
