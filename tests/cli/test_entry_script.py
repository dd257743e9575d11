"""`./lab` names what a system lacks, and installs it where it can."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LAB = Path(__file__).parents[2] / "lab"
NOT_LINKED = {"mn", "apt-get", "sudo", "id"}


def run(*argv, **options):
    options |= {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    return subprocess.run(argv, timeout=30, check=False, **options)


@pytest.fixture
def system(tmp_path):
    """A machine without Mininet, apt-get and sudo; calls its entry script."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for program in Path("/usr/bin").iterdir():
        if program.name not in NOT_LINKED:
            (programs / program.name).symlink_to(program)

    class System:
        @staticmethod
        def has(name, script):
            (programs / name).write_text(f"#!/bin/bash\n{script}\n")
            (programs / name).chmod(0o755)

        @staticmethod
        def lab(*arguments):
            shutil.copy(LAB, tmp_path / "lab")
            for place in ("/usr/share/datasets", "/usr/lib"):  # no data set is installed there
                text = (tmp_path / "lab").read_text()
                (tmp_path / "lab").write_text(text.replace(f":{place}/", f":{tmp_path}/"))
            return run(tmp_path / "lab", *arguments, env=os.environ | {"PATH": str(programs)})

        called = tmp_path / "called.txt"

    made = System()
    made.has("id", "echo 0")
    return made


def test_without_apt_get_it_names_what_is_missing_and_where_to_read_on(system):
    done = system.lab("list")
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("lab: missing: mininet (names of Debian's packages). ")
    page = Path(line.split()[-5])
    assert (LAB.parent / page).is_file()


def test_without_root_and_sudo_it_prints_the_command_for_the_administrator(system):
    system.has("apt-get", f"echo $* >>{system.called}")
    system.has("id", "echo 1000")
    done = system.lab("--packages")
    assert done.returncode == 2
    assert "apt-get update; apt-get install --no-install-recommends mininet" in done.stderr
    assert not system.called.exists()


def test_a_failed_update_of_the_package_lists_does_not_stop_the_installation(system):
    # The "installation" makes Mininet appear; a source that is broken makes every update fail.
    system.has(
        "apt-get",
        f"echo $* >>{system.called}\n"
        'case "$*" in *update*) exit 100 ;; esac\n'
        'ln -s /bin/true "$(dirname "$0")/mn"',
    )
    done = system.lab("--packages")
    assert done.returncode == 0, done.stderr
    assert "apt-get update failed" in done.stderr
    update, install = system.called.read_text().splitlines()
    assert "update" in update.split()
    assert install.endswith("install -qq mininet")


def test_a_package_that_apt_get_does_not_have_ends_it_in_one_line(system):
    system.has("apt-get", 'case "$*" in *install*) exit 100 ;; esac')
    done = system.lab("--packages")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("lab: apt-get could not install: mininet - ")


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        (["--packages"], {}, "mininet"),
        (["--packages", "bible-kjv-text"], {}, "mininet bible-kjv-text"),
        (["test", "--long"], {}, "mininet dataset-fashion-mnist bible-kjv-text"),
        (["test"], {"LAB_DATA": "/data"}, "mininet"),
        (["list"], {}, "mininet"),
    ],
)
def test_data_sets_are_installed_for_who_asks_and_for_the_tests(
    system, monkeypatch, arguments, environment, expected
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    system.has("apt-get", f"echo $* >>{system.called}; exit 100")
    done = system.lab(*arguments)
    assert done.returncode == 2
    assert f"lab: apt-get could not install: {expected} - " in done.stderr.splitlines()[-1]
    assert system.called.read_text().endswith(f"install -qq {expected}\n")


def test_only_packages_of_data_sets_can_be_asked_for(system):
    system.has("apt-get", f"echo $* >>{system.called}")
    done = system.lab("--packages", "nethack")
    assert done.returncode == 2 and not system.called.exists()
    valid = "dataset-fashion-mnist bible-kjv-text, or nothing after it"
    assert done.stderr == f"lab: --packages nethack: valid: {valid}\n"


def test_nothing_is_imported_from_the_current_folder_and_python_is_whole(tmp_path):
    project = tmp_path / "project"
    (project / ".venv" / "bin").mkdir(parents=True)
    (project / "vagrant").mkdir()
    shutil.copy(LAB, project / "lab")
    for name in ("pyproject.toml", "vagrant/build-tools.lock", "vagrant/requirements.lock"):
        (project / name).touch()
    python = project / ".venv/bin/python"
    python.write_text('#!/bin/bash\necho "$PYTHONPATH" "$@" $PYTHONHOME $PYTHONOPTIMIZE\n')
    python.chmod(0o755)
    version = subprocess.run(["/usr/bin/python3", "--version"], capture_output=True, check=True)
    stamped = version.stdout + f"{project} torch 1\n".encode()
    stamp = hashlib.sha256((project / "lab").read_bytes() + stamped).hexdigest()
    (project / ".venv/ready").write_text(f"{stamp}  -\n")
    of_user = {"PYTHONPATH": ":/one::/two:", "PYTHONHOME": "/x", "PYTHONOPTIMIZE": "2"}
    done = run(project / "lab", "list", env=os.environ | of_user)
    assert done.stdout == "/one:/two -P -m testbed list\n", done.stderr


def test_a_second_set_up_says_that_it_waits_for_the_first(tmp_path):
    shutil.copy(LAB, tmp_path / "lab")
    with (tmp_path / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen([tmp_path / "lab", "list"], stderr=subprocess.PIPE) as second:
            assert second.stderr is not None
            lines = iter(second.stderr.readline, b"")
            assert any(line.startswith(b"lab: another ./lab sets up") for line in lines)
            second.kill()


def functions_of(script, *names):
    matches = [re.search(rf"^{name}\(\) \{{.*?^}}\n", script, re.M | re.S) for name in names]
    return "set -euo pipefail\n" + "".join(match.group() for match in matches if match)


def bash(script, **options):
    return run("bash", "-c", script, **options)


def test_a_long_step_says_how_long_it_takes_and_what_is_in_hand(tmp_path):
    functions = functions_of(LAB.read_text(), "say", "attempt", "show_progress", "package_in_hand")
    settings = f"venv={tmp_path} log={tmp_path}/log why=; : >$log; step_says() {{ false; }}\n"
    pip = "echo 'Collecting one==1.0 (from -r x)'; echo 'Collecting two==2.0'; sleep 3"
    shorter = functions.replace("every=15", "every=1")
    done = bash(f"{shorter}{settings}pip() {{ {pip}; }}; attempt step pip; wait")
    first, *following = done.stderr.splitlines()
    assert first == "lab: step"
    assert re.fullmatch(r"lab: step: [12] s, two==2\.0", following[0])
    assert len(following) <= 3
    # Nothing of it is left that would keep a reader of its output waiting.
    assert bash(f"{functions}{settings}attempt step true").stderr == "lab: step\n"


@pytest.mark.parametrize("name", ["copy", "a copy"])
def test_the_programs_of_a_copied_environment_belong_to_the_new_place(tmp_path, name):
    for old in (
        "#!/old/.venv/bin/python\n",
        "#!/bin/sh\n'''exec' \"/o ld/.venv/bin/python3\" x\n' '''\n",
    ):
        venv = tmp_path / name
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--clear", venv], check=True)
        program, foreign = venv / "bin/torchrun", venv / "bin/foreign"
        program.write_text(old + "import sys\nprint(sys.prefix)\n")
        foreign.write_text("#!/usr/bin/perl\n")
        program.chmod(0o755)
        rewrite = functions_of(LAB.read_text(), "rewrite_scripts")
        done = bash(f"{rewrite}venv='{venv}'; rewrite_scripts")
        assert done.returncode == 0, done.stderr
        printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
        assert printed == f"{venv}\n"
        assert foreign.read_text() == "#!/usr/bin/perl\n"


def test_the_lock_is_left_out_with_all_that_nothing_else_needs(tmp_path):
    entry = "{}==1 \\\n    --hash=sha256:0\n    # via {}\n"
    root = "bounded-loss-testbed (pyproject.toml)"
    parents = {"torch": root, "sympy": "torch", "mpmath": "sympy", "numpy": f"torch, {root}"}
    (tmp_path / "lock").write_text(
        "# head\n" + "".join(map(entry.format, *zip(*parents.items(), strict=True)))
    )
    settings = f"mkdir -p bin; ln -s {sys.executable} bin/python; venv=. lock=lock\n"
    functions = functions_of(LAB.read_text(), "lock_without")
    done = bash(f"{functions}{settings}lock_without torch; echo; lock_without ''", cwd=tmp_path)
    without, everything = done.stdout.split("\n\n")
    assert re.findall(r"^\w+", without, re.M) == ["numpy"]
    assert re.findall(r"^\w+", everything, re.M) == list(parents)


def test_all_processes_of_the_lab_are_started_so():
    argument = re.compile(r"sys\.executable, \"-m\"")
    matches = [
        path.relative_to(LAB.parent)
        for room in ("testbed", "controllers")
        for path in (LAB.parent / room).rglob("*.py")
        if argument.search(path.read_text()) and path.parent.name != "cli"
    ]
    assert matches == []  # `python_module.command` is for that
