"""CIFAR-10: downloaded once, verified, read; nothing is kept of what went wrong."""

import hashlib
import io
import socket
import tarfile
import threading

import numpy as np
import pytest

from testbed.shared.yaml_input import InputError
from testbed.training import datasets
from testbed.training.datasets import images

pytestmark = pytest.mark.usefixtures("own_cache")


def records(seed, count=6):
    random = np.random.default_rng(seed)
    content = random.integers(0, 256, (count, 3073), dtype=np.uint8)
    content[:, 0] = np.arange(count) % 10
    return content


def batch_files():
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    return {name: records(seed) for seed, name in enumerate(names)}


def archive(files):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = content.nbytes
            tar.addfile(member, io.BytesIO(content.tobytes()))
    return stream.getvalue()


def prepared(section):
    progress = []
    parameters = datasets.parameters(section)
    parameters.prepare(None, lambda done, total: progress.append((done, total)))
    return parameters.load(None), progress


def test_cifar10_is_downloaded_once_verified_and_read(tmp_path, own_cache, monkeypatch):
    content, file = archive(batch_files()), tmp_path / "a.tar.gz"
    file.write_bytes(content)
    monkeypatch.setattr(images, "_URL", file.as_uri())
    monkeypatch.setattr(images, "_ARCHIVE_SHA256", hashlib.sha256(content).hexdigest())
    dataset, progress = prepared("cifar10")
    assert progress[-1] == (len(content), len(content))
    train = np.concatenate([records(seed) for seed in range(5)])
    pixels = train[:, 1:].reshape(-1, 3, 32, 32).astype(np.float64)
    expected = (pixels - pixels.mean(axis=(0, 2, 3), keepdims=True)) / pixels.std(
        axis=(0, 2, 3), ddof=1, keepdims=True
    )
    inputs, labels = dataset.train_inputs[slice(None)], dataset.train_labels[slice(None)]
    np.testing.assert_allclose(inputs.numpy(), expected, atol=1e-4)
    assert labels.tolist() == train[:, 0].tolist()
    file.unlink()
    assert prepared("cifar10")[0].facts["sha256"] == dataset.facts["sha256"]
    assert [path.name for path in own_cache.iterdir()] == ["cifar-10-binary.tar.gz"]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file://{folder}/a.tar.gz", "not kept: its SHA-256 is "),
        ("file://{folder}/none.tar.gz", "not downloaded: "),
        ("http://127.0.0.1:9/x.tar.gz", "not downloaded: .*refused"),
    ],
)
def test_nothing_is_kept_of_a_failed_download(tmp_path, own_cache, monkeypatch, url, message):
    (tmp_path / "a.tar.gz").write_bytes(b"something else")
    monkeypatch.setattr(images, "_URL", url.format(folder=tmp_path))
    with pytest.raises(InputError, match=message) as caught:
        prepared("cifar10")
    assert "\n" not in str(caught.value)
    assert list(own_cache.iterdir()) == []


def test_a_download_that_is_cut_off_is_told(own_cache, monkeypatch):
    def answer(listener):
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 9000\r\n\r\n" + bytes(1000))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, args=[listener]).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/a.tar.gz"
        monkeypatch.setattr(images, "_URL", url)
        with pytest.raises(InputError, match="not downloaded: 1000 of 9000 bytes came"):
            prepared("cifar10")
    assert list(own_cache.iterdir()) == []


def test_an_archive_in_a_folder_is_checked_against_the_published_sum(tmp_path, monkeypatch):
    section = {"name": "cifar10", "directory": "c"}
    with pytest.raises(InputError, match=r"c holds no cifar-10-binary\.tar\.gz"):
        datasets.load(section, tmp_path)
    content = archive(batch_files())
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "cifar-10-binary.tar.gz").write_bytes(content)
    with pytest.raises(InputError, match=r"tar\.gz: its SHA-256 is .*, expected c4a38c5"):
        datasets.load(section, tmp_path)
    monkeypatch.setattr(images, "_ARCHIVE_SHA256", hashlib.sha256(content).hexdigest())
    assert datasets.load(section, tmp_path).facts["train_examples"] == 30
