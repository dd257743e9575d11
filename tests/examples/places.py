"""It lists where an experiment takes each kind of a user's own code, and that kind's example."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed import experiment
from testbed.experiment import Run
from tests.experiment import small

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# What an experiment of one run says beside that.
ONE_RUN: dict[str, Any] = {
    "rounds": 5,
    "seeds": [1],
    "arms": {"mine": {"protocol": "dblp"}},
    "impairments": [],
}


def _arm(**changes: Any) -> dict[str, Any]:
    return {"arms": {"mine": {"protocol": "dblp", **changes}}}


# kind -> what an experiment says that uses the code of a reference.
PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "tolerance": lambda text: _arm(gather=text),
    "repair": lambda text: _arm(repair=text),
    "order": lambda text: _arm(order=text),
    "congestion_control": lambda text: _arm(congestion_control=text),
    "filling": lambda text: _arm(filling=text),
    "impairment": lambda text: {
        "impairments": [{"kind": text, "host": "server", "rounds": {"random": 1}}]
    },
    "topology": lambda text: {"topology": {"name": text, "workers": 2}},
    "detector": lambda text: {"phases": {"detector": text}},
    "model": lambda text: {"training": {"model": text}},
    "dataset": lambda text: {"training": {"dataset": text}},
    "optimiser": lambda text: {"training": {"optimiser": text}},
    "schedule": lambda text: {"training": {"schedule": {"kind": text}}},
}
# These have no example of their own.
_OTHERS = {
    "optimiser": "import torch\nclass Mine(torch.optim.SGD): pass\n",
    "schedule": (
        "from testbed.training.settings import Schedule\n"
        "class Halves(Schedule):\n"
        "    def _factor(self, at): return 0.5\n"
    ),
}


def good(kind: str) -> str:
    return _OTHERS.get(kind) or (EXAMPLES / f"own_{kind}.py").read_text(encoding="utf-8")


def place(folder: Path, kind: str, text: str | None = None) -> Path:
    """Put a user's file into a folder: one that is good, unless its text is given."""
    path = folder / "mine.py"
    path.write_text(good(kind) if text is None else text)
    return path


def write(folder: Path, kind: str, reference: str = "./mine.py", **changes: Any) -> Path:
    return Path(small.write(folder, **{**ONE_RUN, **PLACES[kind](reference), **changes}))


def load_all(path: Path) -> list[Run]:
    return experiment.load(str(path))


def load(folder: Path, kind: str, reference: str = "./mine.py") -> Run:
    (run,) = load_all(write(folder, kind, reference))
    return run
