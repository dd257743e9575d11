"""AlexNet in its one-column form: Krizhevsky, arXiv 1404.5997 (2014)."""

from torch import nn

_SMALL_BELOW = 64  # pixels
_WIDTHS = (64, 192, 384, 256, 256)


def build(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Five convolutions and three dense layers; 61.1 M weights at 224 x 224 in 1000 classes.

    Images below 64 pixels are too small for its first stride of four. They get a 3 x 3 first
    convolution of stride two and pooling over 2 x 2, which reduce them to a sixteenth.
    """
    channels, height, width = input_shape
    side = min(height, width)
    first, second, third, fourth, fifth = _WIDTHS
    if side >= _SMALL_BELOW:
        stem, window = nn.Conv2d(channels, first, kernel_size=11, stride=4, padding=2), 3
    else:
        stem, window = nn.Conv2d(channels, first, kernel_size=3, stride=2, padding=1), 2
    height, width = (_last_map(each, window) for each in (height, width))
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
    """Pixels along one side of the last feature map."""
    side = (side + 4 - 11) // 4 + 1 if window == 3 else (side + 1) // 2
    for _ in range(3):
        side = (side - window) // 2 + 1
    return side
