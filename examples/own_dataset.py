"""A data set: stripes that lie or stand. `dataset: {name: ./own_dataset.py, arguments: {noise: 1}}`

Any source will do: the function may as well read a file beside it, `Path(__file__).parent`.
"""

import numpy as np
from numpy.typing import NDArray

Part = tuple[NDArray[np.float32], NDArray[np.int64]]


def load(
    count: int = 1000, noise: float = 0.5
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """Training images (N, channels, height, width) and labels (N,), then the same for tests.

    Every process that calls it must get the same, so the generator has a seed of its own.
    """
    random = np.random.default_rng(0)

    def part(size: int) -> Part:
        labels = random.integers(0, 2, size)
        lying = np.tile(np.array([[1.0], [-1.0]]), (4, 8))
        images = np.where(labels[:, None, None] == 0, lying, lying.T)
        images = images + noise * random.standard_normal(images.shape)
        return images[:, None].astype(np.float32), labels

    return (*part(count), *part(count // 4))
