"""Data sets: what is in them, that they are the same every time, and what may be wrong."""

import sys

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from testbed.shared.yaml_input import InputError
from testbed.training import datasets
from testbed.training.datasets import cache
from testbed.training.datasets.stdlib_text import OTHER, VOCABULARY
from testbed.training.state import ModelAndData

GLYPHS = {"name": "glyphs", "size": 500}
pytestmark = pytest.mark.usefixtures("own_cache")


def everything(dataset):
    parts = (dataset.train_inputs, dataset.train_labels, dataset.test_inputs, dataset.test_labels)
    return [part[slice(None)] for part in parts]


def test_digits_are_normalised_to_the_bit_as_torch_would():
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(1797)
    images = torch.from_numpy(bunch.images[order].astype(np.float32)).unsqueeze(1)
    labels = torch.from_numpy(bunch.target[order].astype(np.int64))
    images = (images - images[359:].mean()) / images[359:].std()
    expected = [images[359:], labels[359:], images[:359], labels[:359]]
    dataset = datasets.load("digits")
    loaded = everything(dataset)
    assert all(torch.equal(one, two) for one, two in zip(loaded, expected, strict=True))
    assert dataset.facts["sha256"].startswith("aa844f098fb6fb4fe8988029283bc0ffd162dcacf4a50345")


def test_digits_are_kept_so_that_scikit_learn_is_not_imported_again(monkeypatch):
    first = everything(datasets.load("digits"))
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)  # importing it raises
    again = everything(datasets.load("digits"))
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))


def test_digits_are_there_without_a_place_to_keep_them(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert len(datasets.load("digits").train_labels) == 1438


def test_glyphs_are_normalised_images_of_all_classes():
    dataset = datasets.load(GLYPHS)
    train_inputs, train_labels, test_inputs, test_labels = everything(dataset)
    assert train_inputs.shape == (400, 1, 32, 32)
    assert test_inputs.shape == (100, 1, 32, 32)
    assert train_inputs.dtype == torch.float32
    assert abs(float(train_inputs.mean())) < 1e-4
    assert abs(float(train_inputs.std()) - 1) < 1e-3
    both = torch.cat([train_labels, test_labels])
    assert dataset.classes == 36
    counts = torch.bincount(both)
    assert len(counts) == 36
    assert counts.max() - counts.min() <= 1
    # No test image is also a training image.
    train_rows = {row.tobytes() for row in train_inputs.numpy()}
    assert not train_rows & {row.tobytes() for row in test_inputs.numpy()}


def test_glyphs_depend_on_their_parameters_alone_and_are_kept(own_cache):
    first = datasets.load(GLYPHS).facts["sha256"]
    (kept,) = own_cache.glob("glyphs-*.npz")
    written = kept.stat().st_mtime_ns
    assert datasets.load(GLYPHS).facts["sha256"] == first
    assert kept.stat().st_mtime_ns == written
    kept.unlink()
    assert datasets.load(GLYPHS).facts["sha256"] == first
    assert datasets.load({**GLYPHS, "seed": 1}).facts["sha256"] != first
    assert datasets.load({**GLYPHS, "noise": 0.0}).facts["sha256"] != first
    assert all(path.suffix == ".npz" for path in own_cache.iterdir())


def test_smaller_glyphs_are_means_of_squares_of_the_large_ones():
    large, small = (datasets.load({**GLYPHS, "noise": 0, "side": side}) for side in (32, 8))
    assert small.input_shape == (1, 8, 8)
    pixels = [
        everything(blobs)[2] * blobs.facts["std"][0] + blobs.facts["mean"][0]
        for blobs in (large, small)
    ]
    means = pixels[0].reshape(100, 1, 8, 4, 8, 4).mean(dim=(3, 5))
    assert float((means - pixels[1]).abs().max()) < 2  # rounding, before and after the contrast
    assert torch.equal(everything(large)[3], everything(small)[3])


def test_glyphs_may_differ_from_seed_to_seed_of_a_sweep():
    section = {**GLYPHS, "seed": "run"}
    one, two = (datasets.load(section, seed=seed).facts["sha256"] for seed in (1, 2))
    assert one != two
    assert datasets.load({**GLYPHS, "seed": 2}, seed=1).facts["sha256"] == two
    run = ModelAndData({"seed": 2, "training": {"model": "mlp", "dataset": section}})
    assert run.dataset.facts["sha256"] == two
    assert run.dataset.facts["seed"] == 2


@pytest.mark.parametrize("damage", ["cut off", "one bit", "something else"])
def test_a_damaged_file_in_the_cache_is_made_again(own_cache, damage):
    first = datasets.load(GLYPHS).facts["sha256"]
    (kept,) = own_cache.glob("glyphs-*.npz")
    content = bytearray(kept.read_bytes())
    if damage == "cut off":
        del content[len(content) // 2 :]
    elif damage == "one bit":
        content[len(content) // 2] ^= 1
    else:
        content = bytearray(b"text")
    kept.write_bytes(content)
    assert datasets.load(GLYPHS).facts["sha256"] == first
    assert kept.read_bytes() != content


def test_a_cache_that_cannot_be_made_is_named(own_cache):
    own_cache.parent.write_text("a file")
    with pytest.raises(InputError, match="set XDG_CACHE_HOME"):
        datasets.load(GLYPHS)


def test_characters_without_a_font_are_refused():
    with pytest.raises(InputError, match="no font has all of the characters"):
        datasets.load({**GLYPHS, "characters": "AB\U0001f9ff"})


def test_text_is_source_code_and_labels_are_the_next_characters():
    dataset = datasets.load({"name": "stdlib-text", "sequence_length": 40, "test_sequences": 50})
    assert dataset.input_shape == (40,)
    chosen = np.arange(2000)
    inputs, labels = dataset.train_inputs[chosen], dataset.train_labels[chosen]
    assert torch.equal(inputs[:, 1:], labels[:, :-1])
    text = "".join((VOCABULARY + "?")[token] for token in inputs.flatten().tolist())
    assert "import " in text
    assert "\n    return " in text
    assert float((inputs == OTHER).float().mean()) < 0.01
    assert len(dataset.test_inputs) == 50
    assert dataset.facts["test_files"] > 10
    assert len(dataset.groups) == len(dataset.train_inputs)
    assert len(np.unique(dataset.groups)) > 50


@pytest.mark.parametrize("section", ["mnist", {"name": "glyphs", "sise": 3}, {"size": 3}, 7])
def test_an_unknown_data_set_or_key_is_refused(section):
    with pytest.raises(ValidationError):
        datasets.parameters(section)


def test_two_writers_of_a_cached_file_have_temporary_files_of_their_own(tmp_path):
    """Two containers that share the cache may have the same process number."""
    path = tmp_path / "file"
    with cache.replacing(path) as first, cache.replacing(path) as second:
        first.write_text("1")
        second.write_text("2")
    assert path.read_text() == "1"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]
