"""The lab from Python, as its users use it: one lab for most tests."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
import yaml

from testbed.lab import Lab, leftovers
from testbed.scripting.lab import LabError
from testbed.shared import run_directory
from testbed.shared.input_error import InputError
from tests.documentation import shown
from tests.documentation.described import undescribed
from tests.lab.conftest import SMALL, TIMING, finished, is_alive, wait_for

pytestmark = pytest.mark.lab

PAGE = shown.ROOT / "docs" / "how-to" / "lab-in-python.md"
RATE_BPS = 20_000_000
IMPAIRMENTS = [
    {"kind": "loss", "name": "half", "q": 0.5, "rounds": [2]},
    {"kind": "burst", "name": "flood", "rounds": [4], "rate_factor": 3, "duration_s": 0.2},
    {
        "kind": "queue",
        "name": "narrow",
        "rounds": [5],
        "rate_bps": RATE_BPS // 2,
        "link": ["s1", "worker-2"],
    },
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("scripting")


@pytest.fixture(scope="module")
def lab(folder):
    path = folder / "small.yaml"
    topology = {**SMALL["topology"], "rate_bps": RATE_BPS}
    path.write_text(yaml.safe_dump({**SMALL, "topology": topology, "impairments": IMPAIRMENTS}))
    with Lab.from_experiment(path, out=folder / "run") as lab:
        yield lab


def received_bps(lab):
    flow = ["iperf3", "-c", "server", "-C", "reno", "-t", "1", "-J"]
    done = lab.hosts["worker-1"].run(flow, check=True, timeout=20)
    return json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"]


# What would change the network, and the sockets of the lab's parts, from a host.
ATTEMPTS = """
import json, socket, subprocess
from pathlib import Path
def tried(*words):
    return subprocess.run(words, capture_output=True, text=True).stderr
said = {
    "into": tried(*"ip link add evil type veth peer name evil2 netns 1".split()),
    "down": tried(*"ip link set lo down".split()),
    "ping": tried(*"ping -c 1 server".split()),
}
said["sockets"] = {}
for path in Path("/etc/openvswitch").iterdir():
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as opened:
            said["sockets"][path.name] = opened.connect_ex(str(path))
print(json.dumps(said))
"""


def test_a_program_can_change_neither_the_network_nor_what_the_controller_does(lab):
    result = lab.hosts["worker-1"].run([sys.executable, "-c", ATTEMPTS], check=True)
    text = json.loads(result.stdout)
    assert "Operation not permitted" in text["into"]
    assert "Operation not permitted" in text["down"]
    assert text["ping"] == ""
    assert {"controller.sock", "db.sock", "delay.sock", "s1.mgmt"} <= set(text["sockets"])
    assert set(text["sockets"].values()) == {errno.EACCES}, text["sockets"]


def test_programs_talk_over_links_whose_rate_can_be_changed(lab):
    with lab.hosts["server"].popen(["iperf3", "-s"], stdout=subprocess.DEVNULL) as server:
        server.wait_until_listening()
        assert 0.85 * RATE_BPS < received_bps(lab) < RATE_BPS
        link = lab.link("s1", "worker-1")  # either order
        link.set(rate_bps="5Mbit", toward="s1")
        assert link.settings(toward="s1").rate_bps == 5_000_000
        assert link.settings(toward="worker-1").rate_bps == RATE_BPS
        with pytest.raises(InputError, match="directions differ"):
            link.settings()
        # What waited at the old rate leaves at the new one.
        assert 0.7 * 5e6 < received_bps(lab) < 5.2e6
        link.set(rate_bps=RATE_BPS, queue_bytes="60kB")
        assert (link.settings().rate_bps, link.settings().queue_bytes) == (RATE_BPS, 60_000)
        server.kill()
    assert server.returncode == -signal.SIGKILL


def test_a_link_that_was_made_without_gets_delay_and_loss(lab):
    worker, link = lab.hosts["worker-1"], lab.link("worker-1", "s1")
    ping = ["ping", "-q", "-c", "100", "-i", "0.005", "-W", "1", "server"]
    link.set(delay_s="5ms", toward="worker-1")
    (least_ms,) = map(float, re.findall(r"= ([\d.]+)/", worker.run(ping).stdout))
    assert 4.9 < least_ms < 9
    link.set(delay_s=0, loss=0.5)  # a reply comes back one time in four
    (received,) = map(int, re.findall(r"(\d+) received", worker.run(ping).stdout))
    assert 3 <= received < 51  # five standard deviations
    link.set(loss=0)
    (received,) = map(int, re.findall(r"(\d+) received", worker.run(ping).stdout))
    assert received == 100


def test_a_program_that_takes_too_long_is_killed_with_its_whole_session(lab):
    """Also with what a shell has given a process group of its own, and with orphans."""
    script = "(setsid sleep 1001 & sleep 1002 &) ; set -m; sleep 1003 & sleep 1004"
    with pytest.raises(subprocess.TimeoutExpired):
        lab.hosts["server"].run(["bash", "-c", script], timeout=0.5)
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    left = {words[-1] for words in lines if words[:1] == ["sleep"]}
    assert left.isdisjoint({"1002", "1003", "1004"})
    assert "1001" in left  # a session of its own: it ends with the lab


def test_impairments_begin_and_end_on_demand(lab):
    worker = lab.hosts["worker-2"]
    ping = ["ping", "-q", "-c", "200", "-i", "0.005", "-W", "1", lab.hosts["server"].address]
    with lab.impair("half") as half:
        with pytest.raises(LabError, match="half is in force already"):
            half.begin()
        (received,) = map(int, re.findall(r"(\d+) received", worker.run(ping).stdout))
    assert half.effect["dropped"] == 200 - received
    assert 57 < received < 143  # six standard deviations
    flood = lab.impair("flood")
    flood.begin()
    flood.end()  # it ends by itself, which this waits for
    assert flood.effect["frames_sent"] == pytest.approx(3 * RATE_BPS * 0.2 / (1514 * 8), abs=4)


def test_samples_are_data_frames_while_the_lab_runs(lab):
    time.sleep(1.2)
    samples = lab.samples()
    assert {"t_s", "link", "from", "sent_bytes"} <= set(samples.queues.columns)
    assert {"ovs-vswitchd", "controller"} <= set(samples.processes["name"])
    more = lab.samples()
    assert more.queues.height > samples.queues.height


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda lab: lab.hosts["server"].run(["no-such"]), "server: no-such: there is no such pro"),
        (lambda lab: lab.hosts["server"].run(["ls"], cwd="/none"), "server: ls: .*no /none"),
        (lambda lab: lab.link("worker-1", "worker-2"), "link 'worker-1--worker-2': "),
        (lambda lab: lab.link("worker-1", "s1").set(rate_bps="fast"), "rate_bps: 'fast': "),
        (lambda lab: lab.link("worker-1", "s1").set(loss=2), "loss: 2: "),
        (lambda lab: lab.link("worker-1", "s1").set(delay_s=9), "worker-1--s1: a delay of 9 s .*"),
        (lambda lab: lab.link("worker-1", "s1").set(loss=0, toward="s2"), "toward: 's2': "),
        (lambda lab: lab.impair("fog"), "impairment 'fog': .*half"),
    ],
)
def test_what_is_wrong_is_one_line_and_the_lab_goes_on(lab, wrong, words):
    with pytest.raises((LabError, InputError), match=words) as error:
        wrong(lab)
    assert "\n" not in str(error.value)
    assert lab.hosts["server"].run(["echo", "on"]).stdout == "on\n"


def test_the_verdict_takes_no_change_for_a_fault_and_the_directory_is_complete(lab, folder):
    """The last test of the shared lab: a rate is left as another than the configured one."""
    link = lab.link("worker-2", "s1")
    link.set(rate_bps="2Mbit")
    with lab.impair("narrow"):
        assert link.settings(toward="worker-2").rate_bps == RATE_BPS / 2
        link.set(queue_bytes="70kB")
        # An impairment that meets nothing stops a run.
        lab.hosts["worker-1"].run(["ping", "-c", "3", "-i", "0.1", "worker-2"])
    for end in link.ends:  # what was set before, and meanwhile
        result = link.settings(toward=end)
        assert (result.rate_bps, result.queue_bytes) == (2_000_000, 70_000)
    verdict = lab.verdict()
    assert verdict is lab.verdict()
    stopped = {gate.key for gate in verdict.gates if gate.stops}
    assert stopped <= TIMING, verdict.reasons
    # A rate that was no steady one when it was calibrated is none to judge the changed one by.
    assert "rate_spread" in stopped or "rate_under_load" not in stopped, verdict.reasons
    assert verdict.status == ("invalid" if stopped else "ok")
    assert len(verdict.reasons) == len(stopped)
    lab.close()
    lab.close()
    assert lab.directory == folder / "run"
    assert undescribed(lab.directory) == []
    status = run_directory.read_json(lab.directory / "status.json")
    assert status["verdict"] == verdict.status
    explained = finished("explain", str(lab.directory), check=True)
    assert "rate_under_load" in explained.stdout
    with pytest.raises(LabError, match="the lab has ended"):
        lab.hosts["server"].run(["true"])


KILLED = """
import os, signal, subprocess, threading, time
from testbed.lab import Lab
labs = []
thread = threading.Thread(
    target=lambda: labs.append(Lab.from_topology("star", calibrated=False, out=None))
)
thread.start()
thread.join()
time.sleep(0.2)  # the thread's end must not be the lab's
sleeper = labs[0].hosts["server"].popen(["sleep", "1000"])
os.kill(sleeper.pid, 0)
if os.fork() == 0:  # holds copies of all that is open here
    time.sleep(8)
    os._exit(0)
print(sleeper.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_lab_ends_with_its_script_and_not_with_a_thread_or_a_fork(unchanged_host):
    script = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True)
    assert script.stdout is not None
    sleeper = psutil.Process(int(script.stdout.readline()))
    wait_for(lambda: not is_alive(sleeper), timeout_s=5)
    wait_for(lambda: not leftovers.find(), timeout_s=5)
    assert script.wait(5) == -signal.SIGKILL
    script.stdout.close()


def test_a_server_that_dies_is_reported_and_two_labs_are_apart():
    one, two = (Lab.from_topology("star", calibrated=False) for _ in range(2))
    with two:
        sleeper = one.hosts["server"].popen(["sleep", "1000"])
        inside = psutil.Process(sleeper.pid).parent()
        inside.kill()
        assert sleeper.wait(5) == -signal.SIGKILL
        with pytest.raises(LabError, match="the lab has ended"):
            one.samples()
        one.close()
        assert two.hosts["worker-1"].run(["ping", "-c", "1", "server"]).returncode == 0
    assert "has ended" in repr(two)


def _shown() -> list[shown.Block]:
    return [block for block in shown.blocks(PAGE) if block.kind == "python"]


def python(folder, *words):
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(shown.ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


# A topology's impairments: tests/scripting/test_lab.py; an experiment's are in another block.
@pytest.mark.parametrize(
    "block",
    [entry for entry in _shown() if not entry.file and 'from_topology("star"' not in entry.text],
    ids=str,
)
def test_what_the_page_shows_runs(block, tmp_path):
    done = python(tmp_path, "-c", block.text)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_test_that_the_page_shows_passes(tmp_path):
    for block in _shown():
        if block.file:
            (tmp_path / block.file).write_text(block.text)
    done = python(tmp_path, "-m", "pytest", "-q", str(tmp_path), "-p", "no:cacheprovider")
    assert "1 passed" in done.stdout, done.stdout + done.stderr
