"""Models by name. To add one: a function that returns a `Module`, and a line in `MODELS`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def small_cnn() -> nn.Module:
    """Two convolutions and two dense layers for 1 x 8 x 8 images in 10 classes: 50,311 weights.

    Initialised for rectifiers (He et al., 2015): with torch's defaults the gradient's norm starts
    tiny and grows twentyfold, so that the phase rule would see a critical regime almost always.
    """
    model = nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 87),
        nn.ReLU(),
        nn.Linear(87, 10),
    )
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {"small-cnn": small_cnn}


def build(name: str, seed: int) -> nn.Module:
    """A model with weights that depend on the seed alone, so that all replicas start equal."""
    torch.manual_seed(seed)
    return MODELS[name]()


def tensor_sizes(model: nn.Module) -> list[tuple[str, int]]:
    """Name and element count of every trained tensor, in the order of the flat gradient."""
    return [(name, tensor.numel()) for name, tensor in model.named_parameters()]
