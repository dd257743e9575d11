"""Mininet's prompt inside an experiment's network, driven through a terminal as a person would."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time

import psutil
import pytest
import yaml

from testbed.lab import leftovers
from tests.lab.conftest import SMALL, is_alive, wait_for

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host")]

PROMPT = "lab> "
# The shaper makes up for two frames of lateness, 2.4 ms at this rate: see test_host_impairments.py.
RATE_BPS = 10_000_000
# Of a full Ethernet frame TCP's payload is 1448 of 1514 bytes.
GOODPUT_BPS = RATE_BPS * 1448 / 1514
IMPAIRMENTS = [
    {"kind": "loss", "name": "half", "q": 0.5, "rounds": [2]},
    {"kind": "burst", "name": "flood", "rounds": [4], "rate_factor": 3, "duration_s": 0.2},
]


class Terminal:
    """A `./lab shell` on a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        self.master, slave = pty.openpty()

        def own_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup

        self.process = subprocess.Popen(
            [sys.executable, "-m", "testbed", "shell", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=own_terminal,
            env={**os.environ, "TERM": "dumb", "COLUMNS": "200"},
        )
        os.close(slave)
        self.welcome = self.until_prompt()
        self.inside = psutil.Process(self.process.pid).children(recursive=True)

    def until_prompt(self) -> str:
        printed, deadline_s = "", time.monotonic() + 40
        while not printed.endswith(PROMPT):
            ready, _, _ = select.select([self.master], [], [], deadline_s - time.monotonic())
            assert ready, f"no prompt within 40 s after: {printed}"
            printed += os.read(self.master, 4096).decode()
        return printed

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def ask(self, line: str) -> str:
        self.type(line + "\n")
        return self.until_prompt()

    def wait(self) -> int:
        """The exit status, once it ends; nothing of it is left then."""
        status = self.process.wait(20)
        wait_for(lambda: not any(is_alive(process) for process in self.inside), timeout_s=10)
        assert not {process.pid for process in leftovers.find()} & {
            process.pid for process in self.inside
        }
        return status


@pytest.fixture
def terminal(tmp_path):
    """Opens shells on SMALL with impairments; ends those that are left."""
    opened = []

    def open_one(*arguments: str, **changes):
        path = tmp_path / "small.yaml"
        topology = {**SMALL["topology"], "rate_bps": RATE_BPS}
        path.write_text(
            yaml.safe_dump({**SMALL, "topology": topology, "impairments": IMPAIRMENTS, **changes})
        )
        opened.append(Terminal(str(path), *arguments))
        return opened[-1]

    yield open_one
    for opened_file in opened:
        opened_file.process.kill()
        opened_file.process.wait()
        os.close(opened_file.master)


def number(words: str, text: str) -> int:
    result = re.search(rf"{words} (\d+)", text)
    assert result, text
    return int(result[1])


def test_real_tcp_reaches_the_rate_and_impairments_obey(terminal, tmp_path):
    shell = terminal()
    assert "half, flood" in shell.welcome
    shell.ask("server iperf3 -s -D")
    record = tmp_path / "bbr.json"  # cubic: below
    shell.ask(f"worker-1 iperf3 -c server -C bbr -t 2 -J > {record}")
    end = json.loads(record.read_text())["end"]
    assert end["sender_tcp_congestion"] == "bbr"
    received = end["sum_received"]["bits_per_second"]
    assert 0.9 * GOODPUT_BPS < received < 1.02 * GOODPUT_BPS

    assert "half is on" in shell.ask("impair half on")
    assert "half (loss): in force" in shell.ask("status")
    # Nobody declares data ports here, so the loss hits whatever a program sends.
    flow = "worker-1 ping -q -c 200 -i 0.005 -W 1 server"
    received = number("200 packets transmitted,", shell.ask(flow))
    assert 58 < received < 142  # six standard deviations
    assert number("dropped", shell.ask("impair half off")) == 200 - received
    assert number("200 packets transmitted,", shell.ask(flow)) == 200

    shell.ask("impair flood on")
    time.sleep(0.6)
    status = shell.ask("status")
    assert number("frames_sent", status) == pytest.approx(3 * RATE_BPS * 0.2 / (1514 * 8), abs=4)
    # Of 495 frames 165 leave meanwhile, and the queue holds 99.
    assert number("dropped", status.partition("impairment flood")[2]) > 150
    assert "no impairment 'fog'; valid names: half, flood" in shell.ask("impair fog on")
    assert "10.0.0.1" in shell.ask("dump")

    for shown in (shell.ask("set worker-1--s1 rate 2Mbit/s s1"), shell.ask("set")):
        assert re.search(r"worker-1--s1 +s1 +2Mbit +0ms +0ms +0 +150kB", shown)
        assert re.search(r"worker-1--s1 +worker-1 +10Mbit ", shown)
    shell.ask(f"worker-1 iperf3 -c server -C cubic -t 2 -J > {tmp_path / 'slow.json'}")
    slow = json.loads((tmp_path / "slow.json").read_text())["end"]
    assert slow["sender_tcp_congestion"] == "cubic"
    assert 1.5e6 < slow["sum_received"]["bits_per_second"] < 2.1e6
    for wrong, words in (
        ("worker-1--s2 rate 2Mbit", "no link 'worker-1--s2'; did you mean 'worker-1--s1'?; see: "),
        ("worker-1--s1 speed 2Mbit", "'speed': valid: rate, delay, jitter, loss, queue"),
        ("worker-1--s1 rate", "rate: to which value? see: help set"),
        (
            "worker-1--s1 rate 2MB/s",
            "rate: '2MB/s': must be a whole number from 100_000 to 10_000_000_000, in bit/s; "
            "MB/s is bytes per second: write 16Mbit",
        ),
        (
            "worker-1--s1 loss 1%",
            "loss: '1%': must be a number from 0 to 1; no per cent: write 0.01",
        ),
        ("worker-1--s1 rate 2Mbit s2", "toward: 's2': valid: worker-1, s1"),
    ):
        (line,) = shell.ask(f"set {wrong}").splitlines()[1:-1]
        assert line.startswith("set: ") and words in line, line
    delayed = shell.ask("set worker-1--s1 delay 20ms s1")  # it was made without
    assert re.search(r"worker-1--s1 +s1 +2Mbit +20ms ", delayed)
    assert number("min/avg/max/mdev =", shell.ask("worker-1 ping -q -c 3 -i 0.1 server")) >= 20
    shell.type("\x04")  # Ctrl-D
    assert shell.wait() == 0


def test_ctrl_c_ends_a_command_and_a_killed_shell_leaves_nothing(terminal):
    shell = terminal()
    shell.type("worker-1 ping server\n")
    time.sleep(1.5)
    shell.type("\x03")
    assert number("transmitted,", shell.until_prompt()) >= 1
    time.sleep(0.5)  # nobody presses a key while the prompt is being printed
    shell.type("\x03")
    assert "Interrupt" in shell.until_prompt()
    assert "controller: runs" in shell.ask("status")
    assert "ovs-vswitchd: runs" in shell.ask("status")
    assert "1 received" in shell.ask("worker-2 ping -c 1 -W 2 server")
    shell.type("worker-1 sleep 1000\n")
    time.sleep(0.3)
    shell.process.send_signal(signal.SIGKILL)
    shell.wait()


@pytest.mark.long  # killed: above
def test_a_shell_whose_terminal_is_closed_leaves_nothing(terminal):
    shell = terminal()
    os.close(shell.master)
    shell.master = os.open(os.devnull, os.O_RDONLY)
    shell.wait()
