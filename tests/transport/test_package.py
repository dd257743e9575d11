"""The project as a package: its wheel, in an environment that has numpy and nothing else."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ALONE = Path(__file__).with_name("alone.py")
PACKAGES = ("testbed", "topologies", "controllers", "analysis")
# Nothing of the machine's settings of pip and Python, above all no place to download from.
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "PYTHON"))}
CLEAN["PIP_CONFIG_FILE"] = os.devnull


def run(*command, status=0, **more):
    done = subprocess.run(
        [*map(str, command)],
        cwd="/",
        env=CLEAN | more,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def build(tree, **more):
    """A wheel, built from a copy, since the build writes beside its sources."""
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    code = "import os, sys; from setuptools import build_meta; os.chdir(sys.argv[1]); "
    run(sys.executable, "-I", "-c", code + "build_meta.build_wheel('dist')", tree, **more)
    (built,) = (tree / "dist").glob("*.whl")
    return built


def link(package, site):
    """Makes an installed package, and no other of its neighbours, visible in an environment."""
    distribution = metadata.distribution(package)
    tops = {Path(file).parts[0] for file in distribution.files or ()}
    for top in tops - {"..", "__pycache__"}:  # which several have
        (site / top).symlink_to(distribution.locate_file(top))


def install(wheel, folder):
    """An environment into which pip has installed the wheel; it had numpy before."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin/python"
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    link("numpy", site)
    # That pip succeeds without an index says that numpy is all that the wheel needs.
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-compile"]
    run(*pip, wheel)
    return python, site


def moved_alone(python, *options):
    return json.loads(run(python, "-I", ALONE, *options).stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    return install(wheel, tmp_path_factory.mktemp("environment"))


def test_with_numpy_alone_the_transport_moves_payloads(environment):
    result = moved_alone(environment[0])
    assert result["compiled"] == (shutil.which("cc") is not None)
    assert result["moved"] == {"fixed-low": True, "dblp-stream": True, "tcp": True}
    assert result["rooms"] == ["testbed", "testbed.shared", "testbed.transport"]


def test_without_a_compiler_it_is_installed_and_works_too(tmp_path):
    wheel = build(tmp_path / "tree", CC="no-compiler-here")
    python, _ = install(wheel, tmp_path / "environment")
    result = moved_alone(python)
    assert not result["compiled"]
    assert result["why"] == "it was not compiled"
    assert all(result["moved"].values())


def test_without_the_lab_its_verbs_are_refused_in_one_line(environment):
    python, _ = environment
    done = run(python, "-I", "-m", "testbed", "list", status=2)
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("lab: the package 'typer' is not installed; ")


def test_the_extra_of_the_lab_has_everything_else(wheel):
    (needs,) = metadata.Distribution.discover(name="bounded-loss-testbed", path=[str(wheel)])
    assert [need for need in needs.requires or () if "extra ==" not in need] == ["numpy<3,>=2.0"]
    assert needs.metadata.get_all("Provides-Extra") == ["ddp", "lab", "cluster", "dev"]
    pinned = [need for need in needs.requires or () if 'extra == "lab"' in need]
    assert pinned
    assert all("==" in need.partition(";")[0] for need in pinned)


def test_the_wheel_has_every_file_of_the_packages(wheel):
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    tree = {
        str(path.relative_to(ROOT))
        for name in PACKAGES
        for path in (ROOT / name).rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".so") and path.name != "README.md"
    }
    built = {name for name in packed if name.endswith(".so")}
    assert len(built) == (2 if shutil.which("cc") else 0)
    assert packed - built == tree
