"""Which schedulers may be used, and what is said where one cannot."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from testbed.cluster.scheduler import Scheduler
from testbed.shared.input_error import InputError


@pytest.mark.parametrize(
    "address", ["", "host:8786", "tls://host", "http://127.0.0.1:1", "tcp://[::1", "tls://h:99999"]
)
def test_an_address_of_another_kind_is_refused(address):
    with pytest.raises(InputError, match=r"--scheduler .*: valid: tls://HOST:PORT, or tcp://127"):
        Scheduler(address)


@pytest.mark.parametrize("address", ["tcp://192.0.2.1:8786", "tcp://example.org:8786"])
def test_without_tls_only_this_machine_is_reached(address):
    with pytest.raises(InputError, match="without TLS only on this machine"):
        Scheduler(address)


def test_tls_without_a_certificate_names_what_to_set(monkeypatch):
    with pytest.raises(InputError, match="DASK_DISTRIBUTED__COMM__TLS__CA_FILE"):
        Scheduler("tls://192.0.2.1:8786")


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "tcp://[::1]:1", "tcp://localhost:1"])
def test_a_scheduler_that_does_not_answer_is_one_line(address):
    with pytest.raises(InputError, match=r"no scheduler answers: .*refused") as told:
        Scheduler(address)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("known", "status"), [({}, "running"), ({"workers": {}}, "connecting")], ids=str
)
def test_a_client_that_has_lost_its_scheduler_says_so(known, status):
    scheduler = object.__new__(Scheduler)
    scheduler._address = "tcp://127.0.0.1:1"
    scheduler._client = SimpleNamespace(scheduler_info=lambda n_workers: known, status=status)
    with pytest.raises(InputError, match="the scheduler has gone; what came back stays"):
        scheduler.workers()


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
