"""Initial weights that several models share."""

from torch import nn


def for_rectifiers(model: nn.Sequential) -> nn.Sequential:
    """Initialise dense and convolutional layers as in He et al., 2015; return the model."""
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return model
