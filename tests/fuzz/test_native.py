"""The compiled code under AddressSanitizer and UndefinedBehaviorSanitizer."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

DRIVER = Path(__file__).with_name("native.c")
SOURCES = sorted(DRIVER.parents[2].joinpath("testbed/transport/native").glob("*.c"))
FLAGS = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@pytest.fixture
def compiler():
    found = shutil.which(os.environ.get("CC", "cc"))
    if found is None:
        pytest.skip("no C compiler")
    return found


def build(compiler, folder, sources):
    program = folder / "native"
    command = [compiler, *FLAGS, str(DRIVER), *map(str, sources), "-lm", "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if (done.returncode and "sanitize" in done.stderr) or "lasan" in done.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert done.returncode == 0, done.stderr
    return program


def fuzz(program, seconds):
    return subprocess.run(
        [str(program), "1", str(seconds)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.long)])
def test_no_count_and_no_datagram_leads_beyond_a_buffer(compiler, tmp_path, seconds):
    done = fuzz(build(compiler, tmp_path, SOURCES), seconds)
    assert done.returncode == 0, done.stderr[:3000]
    assert int(done.stdout) > 500 * seconds


@pytest.mark.long
@pytest.mark.parametrize(
    ("check", "source"),
    [
        ("count > it->room || ", "batches.c"),
        ("chunk >= it->chunk_count", "batches.c"),
        ("(uint64_t)count > it->frames_room / (HEADER_BYTES + copied) ||", "batches.c"),
        ("datagrams > it->per_message ? 0 : datagrams", "batches.c"),
        (" || count > it->rows_room / whole", "sealing.c"),
    ],
)
def test_a_check_that_is_left_out_is_found(compiler, tmp_path, check, source):
    without = {
        "chunk >= it->chunk_count": "0",
        "datagrams > it->per_message ? 0 : datagrams": "datagrams",
    }
    places = []
    for each in SOURCES:
        places.append(tmp_path / each.name)
        text = each.read_text()
        if each.name == source:
            assert check in text
            text = text.replace(check, without.get(check, ""))
        places[-1].write_text(text)
    shutil.copy(SOURCES[0].with_name("batches.h"), tmp_path)
    assert fuzz(build(compiler, tmp_path, places), 4).returncode not in (0, 3)  # 3: no socket
