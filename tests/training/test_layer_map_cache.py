"""A kept layer map is the one that was made, and is made anew when it is damaged."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from testbed.training import models
from testbed.training.datasets import cache
from testbed.training.models import layer_map_cache

MADE = [("conv.weight", (8, 1, 3, 3)), ("conv.bias", (8,)), ("scale", ())]


def test_what_was_made_comes_back_without_making_it_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []

    def make():
        made.append(1)
        return MADE

    for _ in range(2):
        assert layer_map_cache.layers("x", 10, (1, 8, 8), make) == MADE
    assert len(made) == 1
    layer_map_cache.layers("x", 11, (1, 8, 8), make)
    assert len(made) == 2
    for path in cache.folder().glob("layers-*"):
        path.write_bytes(path.read_bytes()[:-40])
    assert layer_map_cache.layers("x", 10, (1, 8, 8), make) == MADE
    assert len(made) == 3


def test_a_kept_map_of_a_published_model_is_exact_and_imports_no_package(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    published: dict[str, Any] = {"classes": 1000, "input_shape": (3, 224, 224)}
    made = models.layer_map("efficientnet-b0", kept=True, **published)
    assert sum(size for _, size in models.layer_sizes(made)) == 5_288_548
    assert made == models.layer_map("efficientnet-b0", **published)
    code = (
        "import sys; from testbed.training import models;"
        "found = models.layer_map('efficientnet-b0', kept=True, classes=1000,"
        " input_shape=(3, 224, 224));"
        "print(len(found), {'transformers', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == [str(len(made)), "set()"]
