"""Handwritten digits that ship with scikit-learn."""

from importlib import metadata
from pathlib import Path

import numpy as np

from testbed.shared.yaml_input import InputError
from testbed.training.datasets import cache
from testbed.training.datasets.base import Dataset, DatasetParameters, images_dataset, split_by_seed


class Parameters(DatasetParameters):
    """1,797 images of 8 x 8 pixels: 1,438 for training, 359 for testing."""

    name: str = "digits"

    def load(self, folder: Path | None) -> Dataset:
        """Inputs (1, 8, 8), 10 classes."""
        version = metadata.version("scikit-learn")
        try:
            # Cached, because importing scikit-learn takes a second or two in every run.
            arrays = cache.arrays("digits", {"scikit-learn": version}, _from_package)
        except InputError:  # no cache folder
            arrays = _from_package()
        images, labels = arrays["images"], arrays["labels"]
        train, test = split_by_seed(len(labels))
        return images_dataset(
            train=(images[train], labels[train]),
            test=(images[test], labels[test]),
            classes=10,
            source="digits",
            origin={"name": self.name, "scikit-learn": version},
        )

    def train_count(self) -> int:
        """Four fifths of all images."""
        return 1438


def _from_package() -> cache.Arrays:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return {
        "images": bunch.images.astype(np.float32)[:, None],
        "labels": bunch.target.astype(np.int64),
    }
