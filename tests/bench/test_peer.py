"""Driving another implementation: tiny ones in a folder, over loopback."""

import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.bench import coordinator, peer
from testbed.bench.cases import Selection
from testbed.bench.dblp_authors import DblpAuthors
from testbed.bench.peer import BUILT_IN, End, UnfitError
from testbed.bench.records import record_of
from testbed.lab.kernel import process_status

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "peer" / "plain_tcp.py"
ELEMENTS = 5000

# What the example's adapter drives: another implementation in a folder.
WORKS = """
import socket

def send_all(connection, data):
    connection.sendall(data)

def receive_all(connection, size):
    data = b""
    while len(data) < size:
        data += connection.recv(size - len(data)) or exit("the sender is gone")
    return data
"""


@pytest.fixture(autouse=True)
def _found_by_its_processes(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    return folder


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def drive(checkout, adapter, *, limit_s=30.0, transfers=3):
    common = {
        "checkout": checkout,
        "server_address": "127.0.0.1",
        "control_port": free_port(),
        "data_port": free_port(),
        "rate_bps": 1e9,
        "tolerance": 0.1,
        "chunk_bytes": 1456,
        "elements": ELEMENTS,
    }
    processes = {
        name: peer.start(
            adapter, checkout, lambda: None, checkout, End(is_server=name == "server", **common)
        )
        for name in ("server", "worker-1")
    }
    pids = [process.pid for process in processes.values()]
    answer = coordinator.coordinate(
        processes,
        warm_ups=1,
        limit_s=limit_s,
        finished=lambda figures: len(figures["server"]) == transfers,
    )
    for pid in pids:  # all that were started are gone
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    return answer


def status_of(process):
    return coordinator.coordinate(
        {"theirs": process}, warm_ups=0, limit_s=30.0, finished=lambda _: True
    )[0]


def driven(checkout, source, **options):
    (checkout / "theirs.py").write_text(source)
    return drive(checkout, str(EXAMPLE), **options)


def test_an_implementation_that_works_gives_the_records_of_the_benchmark(checkout):
    counted = 'open("transfers", "a").write("x")\n    return data'
    status, figures = driven(checkout, WORKS.replace("return data", counted))
    assert status == "ok"
    assert [len(mine) for mine in figures.values()] == [3, 3]
    assert (checkout / "transfers").read_text() == "x" * 4  # a warm-up is not measured
    for at_server in figures["server"]:
        assert at_server["chunks_received"] == at_server["chunk_count"] == ELEMENTS
        assert at_server["cpu_s"] > 0
    case = next(
        case
        for case in Selection(other="theirs").cases()
        if case.name == "100M/loss-0%/P-0.8%/theirs"
    )
    record = record_of(replace(case, payload_bytes=ELEMENTS * 4), "ok", figures)
    assert record["peer"] == "theirs"
    assert record["n"] == 3
    assert record["delivered_share"] == 1
    assert record["repair"] is record["control_share"] is record["passes"] is None
    assert not list(checkout.rglob("__pycache__"))


SENDS_ALL, RETURNS = "connection.sendall(data)", "return data"


@pytest.mark.parametrize(
    ("part", "instead", "expected"),
    [
        (SENDS_ALL, "import os; print('no luck', flush=True); os._exit(3)", "status 3: no luck"),
        (SENDS_ALL, "raise OSError('a\\nbug')", "worker-1: send: OSError: a bug"),
        (SENDS_ALL, "exit('they gave up')", "worker-1: send: SystemExit: they gave up"),
        (SENDS_ALL, "import os; os.kill(os.getpid(), 10)", "worker-1: killed by SIGUSR1"),
        (
            RETURNS,
            "return bytes(size // 2) + data[size // 2 :]",
            "server: receive: ValueError: 50.00% of the payload is missing, of at most 10.00%",
        ),
        (RETURNS, "return data[4:] + data[:4]", "ValueError: returned values that were not sent"),
        (
            RETURNS,
            "return data[4:]",
            "returned float32 of shape (4999,); expected float32 of shape (5000,)",
        ),
        (WORKS, "import no_such_thing", "ModuleNotFoundError: No module named 'no_such_thing'"),
    ],
)
def test_a_failure_is_told_with_its_last_words(checkout, part, instead, expected):
    status, figures = driven(checkout, WORKS.replace(part, instead))
    assert status.startswith("failed: ") and expected in status
    assert "\n" not in status
    assert figures == {"server": [], "worker-1": []}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"\xff\x1b[2J", r"'\xff\x1b[2J'"),
        (b'{"figures": {"cpu_s": "fast"}}', """'{"figures": {"cpu_s": "fast"}}'"""),
        (b'{"error": "x", "at_s": null}', """'{"error": "x", "at_s": null}'"""),
        (b"[" * 50_000, f"'{'[' * 80}' ..."),
    ],
)
def test_nonsense_where_messages_are_expected_ends_in_one_line_that_names_the_peer(text, shown):
    """Anything in an adapter's process can send on its socket."""

    def begin(participant):
        participant._connection.send(text)
        time.sleep(60)

    status = status_of(coordinator.start(begin))
    assert status == f"failed: theirs: sent what is no message: {shown}"


def test_of_endless_output_the_last_line_is_kept_and_nothing_fills_a_disk():
    def begin(participant):
        for _ in range(100_000):
            print("a warning")
        print(f"{os.fstat(1).st_size} bytes in a file")
        os._exit(3)

    status = status_of(coordinator.start(begin))
    assert status.startswith("failed: theirs: ") and status.endswith(": 0 bytes in a file")


def test_one_that_hangs_is_ended_with_what_it_started(checkout):
    hangs = WORKS.replace(
        "connection.sendall(data)",
        "import subprocess; p = subprocess.Popen(['sleep', '600']); "
        "open('child', 'w').write(str(p.pid)); p.wait()",
    )
    status, _ = driven(checkout, hangs, limit_s=1.0)
    assert status == "timeout"
    child = int((checkout / "child").read_text())
    end_s = time.monotonic() + 10
    while process_status.lives(child) and time.monotonic() < end_s:  # nobody waits for it
        time.sleep(0.01)
    assert not process_status.lives(child)


def checked(checkout, adapter):
    return status_of(peer.start(adapter, checkout, lambda: None, checkout))


def test_a_folder_of_something_else_and_a_file_without_an_adapter_are_refused(checkout):
    refusal = f"{checkout}: has no theirs.py, which this adapter drives"
    assert checked(checkout, str(EXAMPLE)) == f"failed: theirs: {refusal}"
    (checkout / "theirs.py").touch()
    assert checked(checkout, str(EXAMPLE)) == "ok"
    mine = checkout / "mine.py"
    mine.write_text("import json\n")
    assert f"{mine}: defines no adapter; expected a class that derives from Adapter" in checked(
        checkout, str(mine)
    )


MLT = """
def send_data_mlt(socks, addrs, gradient_payload_bytes, signal_counter): {send}
def recv_data_mlt(socks, tcp_addr, expected_counter, metadata_list, num_chunks): {receive}
def change_UDP_rate(update_rate): pass
"""


def authors_code(folder, *, mlt=MLT, send="pass", receive="pass"):
    (folder / "mlt.py").write_text(mlt.replace("{send}", send).replace("{receive}", receive))
    for name in ("config.py", "utility.py"):
        (folder / name).touch()


def test_a_folder_without_the_authors_code_is_refused(checkout):
    with pytest.raises(UnfitError, match=r"theirs: has no mlt\.py; expected a clone of"):
        DblpAuthors.check(checkout)
    authors_code(checkout)
    DblpAuthors.check(checkout)
    authors_code(checkout, mlt="raise SystemExit")
    with pytest.raises(UnfitError, match=r"mlt\.py: has no function send_data_mlt; expected"):
        DblpAuthors.check(checkout)


SENDS = """
    socks["udp"].sendto(gradient_payload_bytes[:1456], addrs["udp"])
    socks["tcp"].sendall(gradient_payload_bytes)
    assert socks["tcp"].recv(5) == b"S" + signal_counter.to_bytes(4, "big")
    # a probe that has crossed the stop
    socks["tcp"].sendall(b"P" + signal_counter.to_bytes(4, "big"))
    return True
"""
RECEIVES = """
    import socket, config, numpy
    class Tensor:
        def __init__(self, data): self.data = data
        def numpy(self): return numpy.frombuffer(self.data, "<f4")
    assert socks["tcp"].recv(1) == b"N", "no preamble"
    (tensor,) = metadata_list
    data = socks["tcp"].recv(tensor["tensor_data_len"], socket.MSG_WAITALL)
    assert socks["udp"].recv(2000) == data[:config.CHUNK_SIZE]
    assert (config.loss_tolerance, config.DEBUG, num_chunks) == (0.1, 0, 14)
    socks["tcp"].sendall(b"S" + expected_counter.to_bytes(4, "big"))
    return {tensor["key"]: Tensor(data)}, tcp_addr
"""


@pytest.mark.parametrize(("adapter", "option"), [("", 0), ("-nodelay", 1)])
def test_the_authors_functions_are_called_as_they_want_to_be(checkout, adapter, option):
    own_option = f"""
    import socket
    assert socks["tcp"].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == {option}
    """
    authors_code(checkout, send=own_option + SENDS, receive=own_option + RECEIVES)
    status, figures = drive(checkout, BUILT_IN[f"dblp-authors{adapter}"])
    assert status == "ok"
    assert [at["chunks_received"] for at in figures["server"]] == [ELEMENTS] * 3


def test_what_the_authors_functions_print_before_they_give_up_is_said(checkout):
    authors_code(checkout, send="print('SENDER: no answer'); return False", receive=RECEIVES)
    status, _ = drive(checkout, BUILT_IN["dblp-authors"])
    assert status == (
        "failed: worker-1: send: RuntimeError: send_data_mlt returned False: SENDER: no answer"
    )


def test_beside_another_implementation_are_ours_and_tcp_on_the_same_links():
    cases = Selection(other="theirs").cases()
    theirs = {(case.link, case.tolerance) for case in cases if case.peer == "theirs"}
    assert theirs <= {(case.link, case.tolerance) for case in cases if case.repair == "passes"}
    assert {case.link for case in cases if case.peer == "tcp-cubic"} <= {link for link, _ in theirs}


def test_the_benchmark_s_own_process_never_loads_an_adapter():
    loaded = "sorted(n for n in sys.modules if n.endswith(('dblp_authors', 'torch', 'mlt')))"
    code = f"import sys, testbed.bench.measurement; print({loaded})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
