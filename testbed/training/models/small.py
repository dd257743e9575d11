"""Small networks for images of any size, initialised for rectifiers."""

import math

from torch import nn

_HIDDEN = 87
_LARGEST_MAP = 7  # pixels


def cnn(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Two convolutions, one more per further halving of the image, and two dense layers.

    It has 50,311 weights for 1 x 8 x 8 pixels in 10 classes, initialised for rectifiers. The phase
    rule depends on that: with torch's defaults the gradient's norm starts smaller and grows first.
    """
    channels, height, width = input_shape
    maps = 32
    layers: list[nn.Module] = [
        nn.Conv2d(channels, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, maps, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    height, width = height // 2, width // 2
    while min(height, width) > _LARGEST_MAP:
        layers += [nn.Conv2d(maps, 64, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        maps, height, width = 64, height // 2, width // 2
    if not (height and width):
        raise ValueError(f"images of {input_shape[1]} x {input_shape[2]} pixels are too small")
    layers += [
        nn.Flatten(),
        nn.Linear(maps * height * width, _HIDDEN),
        nn.ReLU(),
        nn.Linear(_HIDDEN, classes),
    ]
    return _for_rectifiers(nn.Sequential(*layers))


def mlp(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Two hidden layers of 256 and 128 rectifiers."""
    return _for_rectifiers(
        nn.Sequential(
            nn.Flatten(),
            nn.Linear(math.prod(input_shape), 256),
            nn.ReLU(),
            nn.Linear(256, 128),
            nn.ReLU(),
            nn.Linear(128, classes),
        )
    )


def _for_rectifiers(model: nn.Sequential) -> nn.Sequential:
    """Initialise dense and convolutional layers as in He et al., 2015; return the model."""
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return model
