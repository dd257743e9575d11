"""Which schedulers may be used, and what is said where one cannot."""

from __future__ import annotations

import subprocess
import sys

import pytest

from testbed.cluster.scheduler import Scheduler
from testbed.shared.input_error import InputError


@pytest.mark.parametrize(
    ("address", "said"),
    [
        *((each, "valid: tls://HOST:PORT, or tcp://127") for each in ("", "host:1", "tls://host")),
        *((each, "valid: tls://HOST:PORT") for each in ("http://127.0.0.1:1", "tcp://[::1")),
        *((f"tls://h:{port}", f"port {port}; valid: 1 to 65535$") for port in (0, 65536)),
        ("tcp://127.0.0.999:8786", "127.0.0.999.*valid: tls://HOST:PORT"),
        ("tls://[::g]:8786", "'::g'.*valid: tls://HOST:PORT"),
        ("tcp://192.0.2.1:8786", "without TLS only on this machine"),
        ("tcp://127.example.org:8786", "without TLS only on this machine"),
        ("tls://192.0.2.1:8786", "DASK_DISTRIBUTED__COMM__TLS__CA_FILE"),  # what is to be set
    ],
)
def test_an_address_that_may_not_be_used_is_refused(address, said):
    with pytest.raises(InputError, match=f"--scheduler .*{said}"):
        Scheduler(address)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "tcp://[::1]:1", "tcp://localhost:1"])
def test_a_scheduler_that_does_not_answer_is_one_line(address):
    with pytest.raises(InputError, match=r"no scheduler answers: .*refused") as told:
        Scheduler(address)
    assert "\n" not in str(told.value)


def test_the_lab_and_a_worker_s_function_need_no_dask():
    code = (
        "import sys; sys.modules['distributed'] = sys.modules['dask'] = None\n"
        "import testbed.cli.execution, testbed.cluster.scheduler, testbed.cluster.block\n"
        "from testbed.cluster.scheduler import Scheduler\n"
        "from testbed.shared.input_error import InputError\n"
        "try: Scheduler('tcp://127.0.0.1:1')\n"
        "except InputError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout.startswith("--scheduler: the package 'distributed' is not installed; pip")
