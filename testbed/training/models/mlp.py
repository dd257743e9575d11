"""A multilayer perceptron: dense layers only."""

import math

from torch import nn

from testbed.training.models.small_cnn import for_rectifiers


def build(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Two hidden layers of 256 and 128 rectifiers."""
    return for_rectifiers(
        nn.Sequential(
            nn.Flatten(),
            nn.Linear(math.prod(input_shape), 256),
            nn.ReLU(),
            nn.Linear(256, 128),
            nn.ReLU(),
            nn.Linear(128, classes),
        )
    )
