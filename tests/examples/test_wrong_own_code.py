"""One line says what is wrong with a user's own code, and nothing is begun."""

import sys

import pytest

from testbed.__main__ import main
from testbed.shared.yaml_input import InputError
from tests.examples.places import PLACES, good, load, place, write

BROKEN = {
    "no such file": (None, "./mine.py", "no such file"),
    "syntax": ("x = (\n", "./mine.py", "mine.py: line 1: '(' was never closed"),
    "raises": ("\n1 / 0\n", "./mine.py", "mine.py: line 2: ZeroDivisionError: division by zero"),
    "exits": ("raise SystemExit(3)\n", "./mine.py", "mine.py: line 1: SystemExit: 3"),
    "needs": ("import no_such_thing\n", "./mine.py", "line 1: ModuleNotFoundError"),
    "empty": ("", "./mine.py", "mine.py: defines no "),
    "no such name": ("", "./mine.py:Name", "mine.py: defines no 'Name'; expected "),
    "not what was asked for": ("Name = 3\n", "./mine.py:Name", "mine.py: Name is int; expected "),
    "another class": ("class Name: pass\n", "./mine.py:Name", "mine.py: Name is a class of anot"),
}


# All kinds are read by the same code. Any class may be called for a model or a data set.
CASES = [
    *(("order", broken) for broken in BROKEN),
    *((kind, "raises") for kind in sorted(PLACES.keys() - {"order"})),
    *((kind, "another class") for kind in sorted(PLACES.keys() - {"order", "model", "dataset"})),
]


@pytest.mark.parametrize(("kind", "broken"), CASES)
def test_what_is_wrong_with_own_code_is_one_line_and_nothing_is_begun(
    tmp_path, monkeypatch, capsys, kind, broken
):
    text, reference, message = BROKEN[broken]
    if text is not None:
        place(tmp_path, kind, text)
    path = write(tmp_path, kind, reference)
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["lab", "run", str(path), "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lab: ")]
    assert str(path) in line
    assert message in line
    assert not out.exists()


@pytest.mark.parametrize("kind", ["tolerance", "congestion_control", "order", "filling", "repair"])
def test_a_class_that_lacks_a_method_and_one_that_raises_are_one_line(tmp_path, kind):
    bases = {
        "tolerance": "from testbed.transport import TolerancePolicy as Base",
        "congestion_control": "from testbed.transport import CongestionControl as Base",
        "order": "from testbed.transport import ChunkOrder as Base",
        "filling": "from testbed.training.filling import Filling as Base",
        "repair": "from testbed.transport import Repair as Base",
    }
    place(tmp_path, kind, f"{bases[kind]}\nclass Mine(Base): pass\n")
    with pytest.raises(InputError, match=r"mine\.py: Mine lacks .*, which every "):
        load(tmp_path, kind)
    methods = ["tolerance", "rate_bps", "on_feedback", "permutation", "estimate_mean"]
    methods += ["sender", "receiver"]
    body = "".join(f"    def {method}(self, *_): pass\n" for method in methods)
    raising = "    def __init__(self): raise KeyError('width')\n"
    place(tmp_path, kind, f"{bases[kind]}\nclass Mine(Base):\n{body}{raising}")
    with pytest.raises(InputError, match=r"mine\.py: line \d+: KeyError: 'width'"):
        load(tmp_path, kind)


def test_a_file_with_two_candidates_asks_which(tmp_path):
    second = good("order").replace("class Interleaved", "class Other").partition("class Other")[2]
    place(tmp_path, "order", good("order") + "\n\nclass Other" + second)
    with pytest.raises(InputError, match=r"defines Interleaved, Other; say which .*:Interleaved"):
        load(tmp_path, "order")
    assert load(tmp_path, "order", "./mine.py:Other").protocol.order.endswith("mine.py:Other")
