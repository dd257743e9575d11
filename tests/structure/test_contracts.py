"""Every import contract of pyproject.toml holds, and breaks when a file imports what it forbids."""

import itertools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = PROJECT["tool"]["importlinter"]["root_packages"]
CONTRACTS = {contract["id"]: contract for contract in PROJECT["tool"]["importlinter"]["contracts"]}
TRANSPORT_NEEDS = {"numpy"}
# Contract -> files that break it, each with the import that does.
OFFENCES = {
    "layers": [
        ("testbed/lab/paths.py", "import testbed.verdict.gates"),
        ("testbed/run/runner.py", "import testbed.watch.follow"),
        ("testbed/lab/network.py", "import controllers.timeline"),
    ],
    "circles": [("testbed/experiment/schema.py", "import testbed.experiment.run")],
    "transport": [
        ("testbed/transport/wire.py", "import testbed.lab.kernel.commands"),
        ("testbed/transport/layout.py", "import torch"),
    ],
    "ddp": [
        ("testbed/ddp/exchange.py", "import pydantic"),
        ("testbed/ddp/endpoint_thread.py", "import testbed.lab.kernel.namespaces"),
    ],
    "transport-layers": [
        ("testbed/transport/wire.py", "import testbed.transport.order"),
        ("testbed/transport/order.py", "import testbed.transport.net.udp"),
    ],
    "shared": [("testbed/shared/jsonl.py", "import testbed.transport.wire")],
    "analysis": [("analysis/data/load.py", "import testbed.shared.run_directory")],
    "analysis-layers": [
        ("analysis/formatting.py", "import analysis.tables.rendering"),
        ("analysis/tables/rendering.py", "import analysis.figures.style"),
    ],
    "analysis-readers": [("testbed/verdict/gates.py", "import analysis.data.load")],
    "training": [("testbed/training/worker.py", "import testbed.lab.kernel.namespaces")],
    "frameworks": [
        ("controllers/app.py", "from ryu.base import app_manager"),
        ("testbed/lab/openvswitch.py", "import ryu.cfg"),
    ],
    "dask": [("testbed/cluster/block.py", "import distributed")],
    "verbs": [("testbed/run/runner.py", "import testbed.cli.verbs")],
}


def checked(folder):
    """It returns whether a contract is broken there, and what is printed, in whole lines."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"],
        cwd=folder,
        env={**os.environ, "COLUMNS": "1000"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Contracts: " in done.stdout, done.stdout + done.stderr
    return done.returncode != 0, done.stdout


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """It returns each contract's output by its name, for a copy with all offences at once."""
    folder = tmp_path_factory.mktemp("tree")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for file, line in itertools.chain.from_iterable(OFFENCES.values()):
        with (folder / file).open("a", encoding="utf-8") as offended:
            offended.write(f"\n{line}\n")
    is_broken, output = checked(folder)
    assert is_broken
    parts = re.split(r"^(.+)\n-+\n", output.partition("Broken contracts")[2], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_contract_holds():
    is_broken, output = checked(ROOT)
    assert not is_broken, output


def test_every_contract_has_an_offence_to_catch():
    assert set(CONTRACTS) == set(OFFENCES)


def test_the_layers_have_a_place_for_every_room():
    layers = " ".join(CONTRACTS["layers"]["layers"]).replace("|", " ").split()
    rooms = {f"testbed.{path.parent.name}" for path in ROOT.glob("testbed/*/__init__.py")}
    assert set(layers) == rooms | {"testbed.__main__", "controllers", "topologies", "analysis"}


def test_the_contracts_of_transport_hook_and_shared_name_everything_that_they_may_not_import():
    graph = grimp.build_graph(*PACKAGES, include_external_packages=True)
    others = {name for name in graph.modules if name.partition(".")[0] not in PACKAGES}
    others -= set(sys.stdlib_module_names)
    rooms = {f"testbed.{path.parent.name}" for path in ROOT.glob("testbed/*/__init__.py")}
    rooms |= {"controllers", "topologies", "analysis"}
    forbidden = set(CONTRACTS["transport"]["forbidden_modules"])
    assert (rooms | others) - forbidden == TRANSPORT_NEEDS | {"testbed.transport", "testbed.shared"}
    assert rooms - set(CONTRACTS["shared"]["forbidden_modules"]) == {"testbed.shared"}
    # The hook uses fillings and vectors of the training. pip gets it torch and numpy.
    hook = {"testbed.ddp", "testbed.shared", "testbed.training", "testbed.transport", "torch"}
    assert (rooms | others) - set(CONTRACTS["ddp"]["forbidden_modules"]) == hook | TRANSPORT_NEEDS


@pytest.mark.parametrize(
    ("contract", "file", "line"),
    [(contract, *offence) for contract, offences in OFFENCES.items() for offence in offences],
)
def test_a_contract_names_the_import_that_breaks_it(broken, contract, file, line):
    importer, imported = file.removesuffix(".py").replace("/", "."), line.split()[1]
    if imported.partition(".")[0] not in PACKAGES:
        imported = imported.partition(".")[0]
    if contract == "circles":  # it names siblings
        importer, imported = (f".{module.rpartition('.')[2]}" for module in (importer, imported))
    assert f" {importer} -> {imported} (" in broken[CONTRACTS[contract]["name"]]
