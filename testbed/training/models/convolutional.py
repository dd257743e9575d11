"""Convolutional networks, and a small dense one, for images of any size."""

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn

_SMALL_BELOW = 64  # pixels; smaller images get another first convolution
_LARGEST_POOLED = 7  # pixels


def small_cnn(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
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
    while min(height, width) > _LARGEST_POOLED:
        layers += [nn.Conv2d(maps, 64, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        maps, height, width = 64, height // 2, width // 2
    if not (height and width):
        raise ValueError(f"images of {input_shape[1]} x {input_shape[2]} pixels are too small")
    layers += [
        nn.Flatten(),
        nn.Linear(maps * height * width, 87),
        nn.ReLU(),
        nn.Linear(87, classes),
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


def alexnet(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Five convolutions and three dense layers; 61.1 M weights at 224 x 224 in 1000 classes.

    Krizhevsky's one-column form, arXiv 1404.5997 (2014).
    Images below 64 pixels are too small for its first stride of four. They get a 3 x 3 first
    convolution of stride two and pooling over 2 x 2, which reduce them to a sixteenth.
    """
    channels, height, width = input_shape
    side = min(height, width)
    first, second, third, fourth, fifth = (64, 192, 384, 256, 256)
    if side >= _SMALL_BELOW:
        stem, window = nn.Conv2d(channels, first, kernel_size=11, stride=4, padding=2), 3
    else:
        stem, window = nn.Conv2d(channels, first, kernel_size=3, stride=2, padding=1), 2
    height, width = (_last_map(pixels, window) for pixels in (height, width))
    if min(height, width) < 1:
        raise ValueError(f"images of {side} pixels are too small; valid: 16 or more")
    return nn.Sequential(
        stem,
        nn.ReLU(),
        nn.MaxPool2d(window, stride=2),
        nn.Conv2d(first, second, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(window, stride=2),
        nn.Conv2d(second, third, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(third, fourth, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(fourth, fifth, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(window, stride=2),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(fifth * height * width, 4096),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Linear(4096, classes),
    )


def _last_map(side: int, window: int) -> int:
    side = (side + 4 - 11) // 4 + 1 if window == 3 else (side + 1) // 2
    for _ in range(3):
        side = (side - window) // 2 + 1
    return side


# DenseNet.
_GROWTH = 32  # feature maps that each layer adds
_BLOCKS = (6, 12, 32, 32)
_BOTTLENECK = 4  # times the growth rate
_FIRST_MAPS = 64


class _DenseLayer(nn.Module):
    def __init__(self, maps: int) -> None:
        super().__init__()
        inner = _BOTTLENECK * _GROWTH
        self.bottleneck = nn.Sequential(
            nn.BatchNorm2d(maps), nn.ReLU(), nn.Conv2d(maps, inner, kernel_size=1, bias=False)
        )
        self.growth = nn.Sequential(
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, _GROWTH, kernel_size=3, padding=1, bias=False),
        )

    def forward(self, earlier: Tensor) -> Tensor:
        return torch.cat([earlier, self.growth(self.bottleneck(earlier))], dim=1)


class _MeanOfMap(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return features.mean(dim=(2, 3))


def densenet169(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Four dense blocks with halving transitions; 14.15 M weights at 1000 classes.

    Huang et al., Densely Connected Convolutional Networks, CVPR 2017, Table 1.
    Images below 64 pixels get a 3 x 3 first convolution without stride or pooling, as the paper's
    networks for CIFAR have.
    """
    channels, height, width = input_shape
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if min(height, width) < _SMALL_BELOW:
        if min(height, width) < 8:
            raise ValueError(f"images of {height} x {width} pixels are too small; valid: 8 x 8")
        layers["stem"] = nn.Conv2d(channels, _FIRST_MAPS, kernel_size=3, padding=1, bias=False)
    else:
        layers["stem"] = nn.Sequential(
            nn.Conv2d(channels, _FIRST_MAPS, kernel_size=7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(_FIRST_MAPS),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
    maps = _FIRST_MAPS
    for number, count in enumerate(_BLOCKS, start=1):
        block = nn.Sequential(*(_DenseLayer(maps + index * _GROWTH) for index in range(count)))
        layers[f"block{number}"] = block
        maps += count * _GROWTH
        if number < len(_BLOCKS):
            layers[f"transition{number}"] = nn.Sequential(
                nn.BatchNorm2d(maps),
                nn.ReLU(),
                nn.Conv2d(maps, maps // 2, kernel_size=1, bias=False),
                nn.AvgPool2d(2),
            )
            maps //= 2
    layers["norm"] = nn.Sequential(nn.BatchNorm2d(maps), nn.ReLU(), _MeanOfMap())
    layers["classifier"] = nn.Linear(maps, classes)
    model = nn.Sequential(layers)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
        elif isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.bias)
    return model
