"""A model: `model: ./own_model.py`. Each worker calls `build`, after seeding torch."""

import math

from torch import nn


def build(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """One hidden layer; maps (examples, *input_shape) to logits (examples, classes)."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), 64),
        nn.Tanh(),
        nn.Linear(64, classes),
    )
