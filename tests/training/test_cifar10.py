"""CIFAR-10: downloaded once, verified, read; nothing is kept of what went wrong."""

import functools
import hashlib
import http.server
import io
import tarfile
import threading

import numpy as np
import pytest

from testbed.shared.yaml_input import InputError
from testbed.training import datasets

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


@pytest.fixture
def server(tmp_path):
    """A web server for the files below tmp_path/web, on this machine alone."""
    folder = tmp_path / "web"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            if self.path == "/cut.tar.gz":
                self.send_response(200)
                self.send_header("Content-Length", "100000")
                self.end_headers()
                self.wfile.write(b"x" * 1000)
            else:
                super().do_GET()

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield folder, f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()


def prepared(section):
    progress = []
    parameters = datasets.parameters(section)
    parameters.prepare(None, lambda done, total: progress.append((done, total)))
    return parameters.load(None), progress


@pytest.mark.parametrize("over", ["http", "file"])
def test_cifar10_is_downloaded_once_verified_and_read(server, own_cache, over):
    folder, address = server
    content = archive(batch_files())
    (folder / "a.tar.gz").write_bytes(content)
    url = f"{address}/a.tar.gz" if over == "http" else (folder / "a.tar.gz").as_uri()
    section = {"name": "cifar10", "url": url, "sha256": hashlib.sha256(content).hexdigest()}
    dataset, progress = prepared(section)
    assert progress[-1] == (len(content), len(content))
    train = np.concatenate([records(seed) for seed in range(5)])
    pixels = train[:, 1:].reshape(-1, 3, 32, 32).astype(np.float64)
    expected = (pixels - pixels.mean(axis=(0, 2, 3), keepdims=True)) / pixels.std(
        axis=(0, 2, 3), ddof=1, keepdims=True
    )
    found, labels = dataset.train_inputs[slice(None)], dataset.train_labels[slice(None)]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-4)
    assert labels.tolist() == train[:, 0].tolist()
    (folder / "a.tar.gz").unlink()
    assert prepared(section)[0].facts["sha256"] == dataset.facts["sha256"]
    assert [path.name for path in own_cache.iterdir()] == ["cifar-10-binary.tar.gz"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a.tar.gz", "not kept: its SHA-256 is "),
        ("none.tar.gz", "not downloaded: "),
        ("cut.tar.gz", "not downloaded: .*1000"),
    ],
)
def test_nothing_is_kept_of_a_failed_download(server, own_cache, name, said):
    folder, address = server
    (folder / "a.tar.gz").write_bytes(b"something else")
    with pytest.raises(InputError, match=said) as caught:
        prepared({"name": "cifar10", "url": f"{address}/{name}"})
    assert "\n" not in str(caught.value)
    assert list(own_cache.iterdir()) == []


def test_without_a_network_the_reason_is_one_line(own_cache):
    with pytest.raises(InputError, match=r"not downloaded: .*refused"):
        prepared({"name": "cifar10", "url": "http://127.0.0.1:9/x.tar.gz"})
    with pytest.raises(InputError, match="valid schemes: https, http, file"):
        prepared({"name": "cifar10", "url": "ftp://127.0.0.1/x.tar.gz"})
    assert list(own_cache.iterdir()) == []


def write_batches(folder, **changes):
    folder.mkdir()
    for name, content in (batch_files() | changes).items():
        (folder / name).write_bytes(content.tobytes())


def test_cifar10_s_unpacked_files_are_checked_against_the_published_sums(tmp_path):
    write_batches(tmp_path / "c")
    with pytest.raises(InputError, match=r"data_batch_1.bin: its SHA-256 is .*, expected cee9165"):
        datasets.load({"name": "cifar10", "directory": "c"}, tmp_path)
    dataset = datasets.load({"name": "cifar10", "directory": "c", "verify": False}, tmp_path)
    assert dataset.facts["train_examples"] == 30


def test_what_is_wrong_with_cifar10_files_is_named(tmp_path):
    bad = records(9)
    bad[4, 0] = 11
    write_batches(tmp_path / "labels", **{"test_batch.bin": bad})
    write_batches(tmp_path / "short", **{"data_batch_2.bin": records(1)[:, :3000]})
    for folder, said in (
        ("labels", "cifar10, test part: the label of example 4 is 11; valid: 0 to 9"),
        ("short", "data_batch_2.bin has 18000 bytes; valid: a multiple of 3073"),
        ("none", "holds neither cifar-10-binary.tar.gz nor data_batch_1.bin"),
    ):
        section = {"name": "cifar10", "directory": folder, "verify": False}
        with pytest.raises(InputError, match=said):
            datasets.load(section, tmp_path)
