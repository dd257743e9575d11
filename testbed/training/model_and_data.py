"""A run's model, its data, and each worker's share of the data.

The launcher loads them once before it forks, so that all processes share the memory of the data and
of the imported packages. Torch computes nothing before the fork.
"""

import importlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from torch import nn

from testbed.training import datasets, models
from testbed.training.datasets import Dataset, splits

_SPLIT: TypeAdapter[splits.Equal | splits.Dirichlet] = TypeAdapter(splits.AnySplit)


@dataclass(frozen=True)
class ModelAndData:
    """The model and data that a run's `config.json` describes; each part is made on first use."""

    config: dict[str, Any]

    @property
    def _training(self) -> dict[str, Any]:
        section: dict[str, Any] = self.config["training"]
        return section

    @property
    def _computes(self) -> bool:
        return (self._training.get("pace") or {}).get("kind") != "payload-only"

    @property
    def folder(self) -> Path | None:
        """The folder of the experiment's file, for data that lie beside it."""
        folder = self.config.get("folder")
        return None if folder is None else Path(folder)

    @cached_property
    def dataset(self) -> Dataset:
        seed = int(self.config["seed"])
        found = datasets.load(self._training.get("dataset", "digits"), self.folder, seed)
        if self._training.get("evaluate_on", "test") == "validation":
            return splits.validating(found, seed)
        return found

    def shares(self, workers: int) -> list[NDArray[np.int64]]:
        """The indices of each worker's training examples, in rank order."""
        split = _SPLIT.validate_python(self._training.get("split", "equal"))
        found = splits.shares(split, self.dataset.groups, workers, int(self.config["seed"]))
        if self._computes:
            splits.require_batches(found, self._training["batch_size"], split)
        return found

    @cached_property
    def layers(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and shape of each trained tensor, in the order of the flat gradient."""
        name = self._training["model"]
        entry = models.MODELS.get(name)
        section = self._training.get("pace") or {}
        if not self._computes and entry is not None and entry.published:
            classes, shape = entry.published
        else:
            classes, shape = self.dataset.classes, self.dataset.input_shape
        # A cached map imports nothing. A run that computes must import before the fork.
        layers = models.layer_map(name, classes=classes, input_shape=shape, kept=not self._computes)
        return models.scaled(layers, float(section.get("scale", 1.0)))

    def model(self, rank: int) -> nn.Module:
        """A replica with the run's initial weights."""
        seed = int(self.config["seed"])
        model = models.build(
            self._training["model"],
            seed,
            classes=self.dataset.classes,
            input_shape=self.dataset.input_shape,
        )
        # For this worker alone, so that dropout differs between replicas.
        own = np.random.SeedSequence([seed, 4, rank])
        torch.manual_seed(int(own.generate_state(1)[0]))
        return model

    def load(self) -> None:
        """Load what all processes share: the data, and the packages that the model needs."""
        _ = self.dataset, self.layers
        if self._computes:
            # The first optimiser of a process imports it, which takes a second.
            importlib.import_module("torch._dynamo")

    def facts(self, workers: int) -> dict[str, Any]:
        elements = sum(size for _, size in models.layer_sizes(self.layers))
        return {
            "dataset": self.dataset.facts,
            "share_sizes": [len(share) for share in self.shares(workers)],
            "model": {
                "name": self._training["model"],
                "parameters": elements,
                "payload_bytes": 4 * elements,
                "layers": len(self.layers),
            },
        }
