"""What a run trains, apart from any network: its data, its model, and each worker's share.

The launcher loads it once, before it forks, so that all processes share the memory of the data and
of the packages. Loading makes numpy arrays and, on torch's meta device, shapes: torch computes
nothing before the fork.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from torch import nn

from testbed.training import datasets, models, pace
from testbed.training.datasets import Dataset

_SPLIT: TypeAdapter[datasets.Equal | datasets.Dirichlet] = TypeAdapter(datasets.AnySplit)


@dataclass(frozen=True)
class ModelAndData:
    """All of it follows from the run's `config.json`; each part is made when it is first used.

    Raises:
        InputError: something is missing or does not fit: one line, at first use.
    """

    config: dict[str, Any]

    @property
    def _training(self) -> dict[str, Any]:
        section: dict[str, Any] = self.config["training"]
        return section

    @property
    def folder(self) -> Path | None:
        """The folder of the experiment's file, for data that lie beside it."""
        folder = self.config.get("folder")
        return None if folder is None else Path(folder)

    @cached_property
    def dataset(self) -> Dataset:
        """The data."""
        return datasets.load(self._training.get("dataset", "digits"), self.folder)

    def shares(self, workers: int) -> list[NDArray[np.int64]]:
        """Which training examples each worker has, in rank order."""
        split = _SPLIT.validate_python(self._training.get("split", "equal"))
        found = datasets.shares(split, self.dataset.groups, workers, int(self.config["seed"]))
        datasets.require_batches(found, self._training["batch_size"], split)
        return found

    @cached_property
    def layers(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and shape of what is trained, in the order of the flat gradient.

        A run that only sends payloads has the model's published size, if there is one, whatever
        the data set, times the scale of its pace.
        """
        name = self._training["model"]
        entry = models.MODELS.get(name)
        section = self._training.get("pace") or {}
        computes = section.get("kind") != "payload-only"
        if not computes and entry is not None and entry.published:
            classes, shape = entry.published
        else:
            classes, shape = self.dataset.classes, self.dataset.input_shape
        # A map that is kept imports nothing; what computes needs the packages before the fork.
        layers = models.layer_map(name, classes=classes, input_shape=shape, kept=not computes)
        return pace.scaled(layers, float(section.get("scale", 1.0)))

    def model(self, rank: int) -> nn.Module:
        """A replica with the run's initial weights.

        Afterwards torch's generator is seeded for this worker alone, so that the replicas drop out
        different units.
        """
        seed = int(self.config["seed"])
        model = models.build(
            self._training["model"],
            seed,
            classes=self.dataset.classes,
            input_shape=self.dataset.input_shape,
        )
        own = np.random.SeedSequence([seed, 4, rank])
        torch.manual_seed(int(own.generate_state(1)[0]))
        return model

    def load(self) -> None:
        """Make what all processes share: the data, and the packages that the model needs."""
        _ = self.dataset, self.layers

    def facts(self, workers: int) -> dict[str, Any]:
        """What is recorded of it in the run directory."""
        elements = sum(size for _, size in models.layer_sizes(self.layers))
        return {
            "dataset": self.dataset.facts,
            "share_sizes": [len(each) for each in self.shares(workers)],
            "model": {
                "name": self._training["model"],
                "parameters": elements,
                "payload_bytes": 4 * elements,
                "layers": len(self.layers),
            },
        }
