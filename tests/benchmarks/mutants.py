"""How many faults in the core its tests find: `python -m tests.benchmarks.mutants [N] [SEED]`.

Draws N places of `testbed/transport/core` at random, changes each in one small way (a comparison,
an operator, a constant, a statement left out), and runs the transport's tests without sockets on
each changed copy. Prints what survived, for a human to look at, and the share with its interval.
"""

import ast
import copy
import difflib
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CORE = Path("testbed/transport/core")
# The quick ones first: most mutants end there.
TESTS = [
    f"tests/transport/test_{name}.py"
    for name in (
        *("connection", "transfer_messages", "wire", "states", "layout", "pacing"),
        *("control_messages", "cluster", "tolerance_rules", "acknowledged_repair", "transfer"),
        *("hostile", "repair_machine", "repair_completion", "order"),
    )
]
TIMEOUT_S = 300
_SWAPPED: dict[type[Any], type[Any]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.LShift: ast.RShift,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_LEFT_OUT = (ast.Assign, ast.AugAssign, ast.Expr, ast.Return, ast.Raise, ast.Delete, ast.Continue)


def places(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """The nodes that can be changed, each with what would be done to it."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPPED:
                yield node, "comparison"
            elif isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in _SWAPPED:
                yield node, "operator"
            elif isinstance(node, ast.If | ast.While | ast.IfExp):
                yield node, "condition"
            elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
                yield node, "constant"
            elif isinstance(node, _LEFT_OUT) and not _is_docstring(node):
                yield node, "left out"


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def change(node: ast.AST, kind: str) -> None:
    """Changes a node in place."""
    if isinstance(node, ast.Compare):
        node.ops[0] = _SWAPPED[type(node.ops[0])]()
    elif isinstance(node, ast.BoolOp | ast.BinOp):
        node.op = _SWAPPED[type(node.op)]()
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Constant):
        value = node.value
        node.value = not value if isinstance(value, bool) else value + 1  # type: ignore[operator]
    else:
        # A statement becomes `pass`, whatever it was.
        node.__class__ = ast.Pass
        node._fields = ()  # type: ignore[misc]


def mutants(count: int, seed: int) -> list[tuple[Path, str, str]]:
    """So many of them, drawn without repetition: file, its changed source, and the difference."""
    all_places = [
        (file, number)
        for file in sorted((ROOT / CORE).glob("*.py"))
        for number, _ in enumerate(places(ast.parse(file.read_text())))
    ]
    found = []
    for file, number in random.Random(seed).sample(all_places, min(count, len(all_places))):
        tree = ast.parse(file.read_text())
        before = ast.unparse(tree)
        changed = copy.deepcopy(tree)
        node, kind = list(places(changed))[number]
        line = getattr(node, "lineno", 0)
        change(node, kind)
        after = ast.unparse(ast.fix_missing_locations(changed))
        shown = [
            text
            for text in difflib.unified_diff(before.splitlines(), after.splitlines(), n=0)
            if text[:1] in "+-" and text[:3] not in ("---", "+++")
        ]
        found.append((file.relative_to(ROOT), after, f"{file.name}:{line} {kind}: {shown}"))
    return found


def survives(tree: Path, file: Path, source: str) -> bool:
    """Whether all tests pass on the changed copy."""
    original = (tree / file).read_text()
    (tree / file).write_text(source)
    try:
        done = subprocess.run(
            [*(sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"), *TESTS],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return done.returncode == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        (tree / file).write_text(original)


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson, 1927)."""
    share = successes / trials
    centre = share + z * z / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return (centre - half) / (1 + z * z / trials), (centre + half) / (1 + z * z / trials)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    alive = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for part in ("testbed", "tests", "pyproject.toml"):
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, tree / part)
        if not survives(tree, CORE / "wire.py", (ROOT / CORE / "wire.py").read_text()):
            sys.exit("the tests fail without any change")
        for number, (file, changed, shown) in enumerate(mutants(count, seed), 1):
            if survives(tree, file, changed):
                alive += 1
                print(f"survived: {shown}", flush=True)
            low, high = wilson(alive, number)
            print(f"{number}: {alive} survive, {low:.1%} to {high:.1%}", flush=True)


if __name__ == "__main__":
    main()
