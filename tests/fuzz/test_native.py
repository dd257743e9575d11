"""The compiled code under AddressSanitizer and UndefinedBehaviorSanitizer."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

DRIVER, OF_CODECS = (Path(__file__).with_name(name) for name in ("native.c", "codecs.c"))
SOURCE = DRIVER.parents[2] / "testbed/transport/native/batches.c"
FLAGS = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@pytest.fixture
def compiler():
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler")
    return compiler


def build(compiler, folder, source, driver=DRIVER):
    program = folder / "native"
    command = [compiler, *FLAGS, f"-I{source.parent}", str(driver), "-lm", "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if (done.returncode and "sanitize" in done.stderr) or "lasan" in done.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert done.returncode == 0, done.stderr
    return program


def fuzz(program, seconds):
    return subprocess.run(
        [str(program), "1", str(seconds)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("driver", [DRIVER, OF_CODECS], ids=lambda path: path.stem)
@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.long)])
def test_no_count_no_datagram_and_no_chunk_leads_beyond_a_buffer(
    compiler, tmp_path, driver, seconds
):
    done = fuzz(build(compiler, tmp_path, SOURCE, driver), seconds)
    assert done.returncode == 0, done.stderr[:3000]
    assert int(done.stdout) > 500 * seconds


@pytest.mark.long
@pytest.mark.parametrize(
    ("check", "instead"),
    [
        ("count > it->room || ", ""),
        ("chunk >= it->chunk_count", "0"),
        ("(uint64_t)count > it->frames_room / it->stride ||", ""),
        ("it->stride < HEADER_BYTES + copied || ", ""),
    ],
)
def test_a_check_that_is_left_out_is_found(compiler, tmp_path, check, instead):
    text = SOURCE.read_text()
    assert check in text
    copy = tmp_path / SOURCE.name
    copy.write_text(text.replace(check, instead))
    assert fuzz(build(compiler, tmp_path, copy), 4).returncode not in (0, 3)  # 3: no socket
