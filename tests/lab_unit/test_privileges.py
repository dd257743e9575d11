"""Root's privileges are dropped and abandoned, tried in processes of their own."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from testbed.lab import sandbox
from testbed.lab.kernel import privileges
from testbed.lab.kernel.privileges import Caller

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
EMPTY: Mapping[str, str] = {}
SUDO = {"SUDO_UID": str(NOBODY), "SUDO_GID": str(NOBODY)}

# In network and mount namespaces of its own, as a program in a host is.
ATTEMPTS = """
import ctypes, json, os, socket, subprocess
from testbed.lab.kernel import privileges

def attempt(what):
    try:
        return what() or "done"
    except OSError as error:
        return os.strerror(error.errno)

def mount():
    if ctypes.CDLL(None, use_errno=True).mount(b"x", b"/mnt", b"tmpfs", 0, None):
        raise OSError(ctypes.get_errno(), "mount")

def other_network():
    with open("/proc/1/ns/net", "rb") as outside:
        if ctypes.CDLL(None, use_errno=True).setns(outside.fileno(), 0):
            raise OSError(ctypes.get_errno(), "setns")

def a_program():
    done = subprocess.run(["sh", "-c", "grep -hE 'Cap(Eff|Bnd)|NoNew' /proc/self/status"],
                          capture_output=True, text=True, check=True)
    return done.stdout.split()[1::2]

subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "x", "/mnt"], check=True)
open("/mnt/of-root", "w").close()
privileges.abandon()
print(json.dumps({
    "user": os.getresuid(),
    "groups": os.getgroups(),
    "chown": attempt(lambda: os.chown("/mnt/of-root", 1, 1)),
    "write": attempt(lambda: open("/mnt/new", "w").close()),
    "mount": attempt(mount),
    "shadow": attempt(lambda: open("/etc/shadow").close()),
    "other network": attempt(other_network),
    "become root": attempt(lambda: os.setresuid(0, 0, 0)),
    "raw socket": attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close()),
    "low port": attempt(lambda: socket.socket().bind(("127.0.0.1", 80))),
    "program": a_program(),
}))
"""


def python(
    *words: str,
    before: Sequence[str] = (),
    environment: Mapping[str, str] = EMPTY,
    cwd: Path = ROOT,
) -> subprocess.CompletedProcess[str]:
    outside = {key: entry for key, entry in os.environ.items() if not key.startswith("SUDO_")}
    return subprocess.run(
        [*before, sys.executable, *words],
        cwd=cwd,
        env=outside | dict(environment),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def attempts(*before: str, environment: Mapping[str, str] = EMPTY) -> dict[str, object]:
    before = before or ("unshare", "--net", "--mount")
    done = python("-c", ATTEMPTS, before=before, environment=environment)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_under_sudo_a_program_is_the_caller_and_has_its_hosts_network_alone():
    assert attempts(environment=SUDO) == {
        "user": [NOBODY] * 3,
        "groups": [NOBODY],
        "chown": "Operation not permitted",
        "write": "Permission denied",
        "mount": "Operation not permitted",
        "shadow": "Permission denied",
        "other network": "Permission denied",
        "become root": "Operation not permitted",
        "raw socket": "done",
        "low port": "done",
        "program": ["0000000000002400", "0000000000002400", "1"],
    }


@pytest.mark.parametrize(
    "before", [(), ("unshare", "--user", "--map-root-user", "--net", "--mount")]
)
def test_as_root_alone_a_program_stays_user_0_without_roots_powers(before):
    result = attempts(*before)
    assert result["user"] == [0] * 3
    assert result["mount"] in ("Operation not permitted", "Permission denied")
    # In a user namespace, user 1 does not exist.
    assert result["chown"] in ("Operation not permitted", "Invalid argument")
    assert result["other network"] in ("Operation not permitted", "Permission denied")
    assert result["raw socket"] == result["low port"] == result["write"] == "done"
    assert result["program"] == ["0000000000002404", "0000000000002404", "1"]


OPENING = """
import socket, warnings
from testbed.lab.kernel import privileges
from testbed.transport.net.addresses import resolve
from testbed.transport.net.carriers import open_data_sockets
from testbed.transport.net.udp import BUFFER_BYTES

warnings.simplefilter("error")  # one about a small buffer
host = resolve("127.0.0.1", what="here")
udp = open_data_sockets(carrier="udp", local=host, peers={"a": host}, ports={"a": 0},
                        is_server=False, chunk_bytes=1000)["a"]
privileges.abandon()
print({key: udp.facts()[key] // BUFFER_BYTES for key in ("receive_buffer_bytes",)})
try:
    udp._socket.setsockopt(socket.SOL_SOCKET, 33, 1 << 16)  # SO_RCVBUFFORCE
except PermissionError:
    print("refused")
"""


@pytest.mark.parametrize("environment", [SUDO, EMPTY])
def test_sockets_that_were_opened_before_keep_the_buffers_that_root_may_have(environment):
    done = python("-c", OPENING, environment=environment)
    assert done.stdout.splitlines() == ["{'receive_buffer_bytes': 2}", "refused"]


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder of root's to which everybody has a way, unlike to pytest's own."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def under_sudo(monkeypatch):
    for name, value in SUDO.items():
        monkeypatch.setenv(name, value)


def test_only_roots_own_files_of_one_name_are_handed_over(reachable, under_sudo, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    run = reachable / "run"
    (run / "logs").mkdir(parents=True)
    (run / "logs" / "a.log").touch()
    (run / "another's").touch()
    os.chown(run / "another's", 1, 1)
    (run / "link").symlink_to(elsewhere / "file")
    (run / "folder").symlink_to(elsewhere)
    outside = reachable / "outside"
    outside.touch()
    (run / "second-name").hardlink_to(outside)

    privileges.hand_over_below(run)

    def owner(path: Path) -> int:
        return path.lstat().st_uid

    assert [owner(entry) for entry in (run, run / "logs", run / "logs/a.log")] == [NOBODY] * 3
    assert owner(run / "another's") == 1
    assert [owner(entry) for entry in (outside, elsewhere, elsewhere / "file", reachable)] == [
        0
    ] * 4


def test_a_folder_that_the_caller_did_not_make_is_not_handed_over(reachable):
    """As after an exchange of a folder above by a link to one of root's."""
    etc = reachable / "etc"
    etc.mkdir()
    (etc / "shadow").touch()
    (reachable / "runs").symlink_to(reachable)
    script = "import sys; from pathlib import Path; from testbed.lab.kernel import privileges as p;"
    script += "p.drop(); p.hand_over_below(Path(sys.argv[1]))"
    (reachable / "link").symlink_to(etc)
    for path, status in (("runs/etc", 0), ("link", 1)):
        done = python("-c", script, str(reachable / path), environment=SUDO)
        assert done.returncode == status, done.stderr
    assert {entry.lstat().st_uid for entry in (etc, etc / "shadow")} == {0}


# Root's part of a run under sudo, in a sandbox.
PINNING = """
import errno
from pathlib import Path
from testbed.lab import sandbox
from testbed.shared.jsonl import JsonLinesWriter
from testbed.shared.run_directory import write_json

def in_sandbox(request, messages):
    sandbox.prepare()
    given, found = Path(request["run"]), []
    try:
        directory = sandbox.pinned(given)
    except PermissionError as error:
        return {"found": str(error)}
    above = given.parent  # exchanged for a link, as are folders below
    above.rename(above.with_name("before"))
    above.symlink_to(above.with_name("etc"))
    for place in ("logs", "events"):
        for write in (
            lambda: (directory / place / "a.log").write_text("x"),
            lambda: JsonLinesWriter(directory / place / "a.jsonl").write({"a": 1}),
            lambda: write_json(directory / place / "a.json", {}),
            lambda: (directory / place / "folder").mkdir(),
        ):
            try:
                write()
                found.append(f"{place} written")
            except OSError as error:
                refused = error.errno in (errno.ELOOP, errno.EEXIST)
                found.append(f"{place} {'refused' if refused else error}")
    return {"found": found}
"""


def test_under_sudo_no_folder_that_is_a_link_leads_root_out_of_a_runs_directory(
    reachable, under_sudo, tmp_path, monkeypatch
):
    (tmp_path / "pinning.py").write_text(PINNING)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    run, etc = reachable / "small" / "run", reachable / "etc"
    (run / "events").mkdir(parents=True)
    (etc / "run").mkdir(parents=True)
    (run / "logs").symlink_to(etc)
    refused = f"{run}: user {NOBODY}, who called sudo, cannot write there"
    assert sandbox.result_of("pinning", {"run": str(run)}) == {"found": refused}
    os.chown(run, NOBODY, NOBODY)
    result = sandbox.result_of("pinning", {"run": str(run)})["found"]
    assert result == ["logs refused"] * 4 + ["events written"] * 4
    assert [path.name for path in etc.rglob("*")] == ["run"]
    written = {path.name for path in (reachable / "before" / "run" / "events").iterdir()}
    assert written == {"a.log", "a.jsonl", "a.json", "folder"}


def lab(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A verb, as `sudo` starts it: with root's user number and the caller's in the environment."""
    environment = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **SUDO}
    return python("-P", "-m", "testbed", *words, environment=environment, cwd=cwd)


def test_under_sudo_a_new_file_is_the_callers_and_nothing_else_changes(reachable):
    if not privileges.reaches(Caller(uid=NOBODY, gid=NOBODY), ROOT, "r"):
        pytest.skip("the project lies where no other user has a way")
    reachable.chmod(0o1777)
    (reachable / "of-root").mkdir()
    (reachable / "of-root" / "file").touch()
    (reachable / "of-root" / "link").symlink_to(reachable / "of-root" / "file")
    done = lab("new", "experiment", str(reachable / "quick"), cwd=reachable)
    assert done.returncode == 0, done.stderr
    assert (reachable / "quick.yaml").lstat().st_uid == NOBODY
    before = [reachable, *reachable.glob("of-root/**/*"), reachable / "of-root"]
    assert {entry.lstat().st_uid for entry in before} == {0}


def test_under_sudo_a_link_leads_no_further_than_the_caller_may_go(reachable):
    secret = reachable / "secret"
    secret.mkdir(mode=0o755)
    (reachable / "results").symlink_to(secret)
    words = ("run", "quick", "--out", str(reachable / "results"))
    done = lab(*words, cwd=reachable)
    assert done.returncode == 2
    assert done.stderr.endswith("Permission denied to the user who called sudo\n")
    assert not list(secret.iterdir())
    assert secret.lstat().st_uid == 0
