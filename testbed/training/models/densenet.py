"""DenseNet-169: Huang et al., Densely Connected Convolutional Networks, CVPR 2017, Table 1."""

from collections import OrderedDict

import torch
from torch import Tensor, nn

_GROWTH = 32  # feature maps that each layer adds
_BLOCKS = (6, 12, 32, 32)
_BOTTLENECK = 4  # times the growth rate
_FIRST_MAPS = 64
_SMALL_BELOW = 64  # pixels


class _DenseLayer(nn.Module):
    """BN, ReLU, 1 x 1; BN, ReLU, 3 x 3; appends the new maps to all earlier ones."""

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
    """Global average pooling: (examples, maps, height, width) -> (examples, maps)."""

    def forward(self, features: Tensor) -> Tensor:
        return features.mean(dim=(2, 3))


def build(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Four dense blocks with halving transitions; 14.15 M weights at 1000 classes.

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
