"""How many faults in the core its tests find: `python -m tests.benchmarks.mutants [N] [SEED]`.

Draws N places of `testbed/transport/core` at random, changes each in one small way (a comparison,
an operator, a constant, a statement left out), and runs those of the transport's tests without
sockets that execute the changed lines. Prints what survived, for a human to look at, and the share
with its interval.
"""

import ast
import copy
import difflib
import math
import random
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.mutant_tests import Suite

ROOT = Path(__file__).resolve().parents[2]
CORE = Path("testbed/transport/core")
TESTS = [
    f"tests/transport/test_{name}.py"
    for name in (
        *("ack", "acknowledged_repair", "arrivals", "bounded_energy", "cluster", "connection"),
        *("connection_settings", "control_messages", "measured_limits"),
        *("early", "errors", "gathering", "hostile_machine", "hot_path"),
        *("joining", "layout", "observation", "order", "own_answers", "pacing", "path_estimates"),
        *("patience", "price_of_a_pass", "protocols", "repair_completion", "repair_machine"),
        *("sending_path", "states", "tolerance", "tolerance_rules", "transfer"),
        *("transfer_messages", "wire", "worth"),
    )
]
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
_LOOKED_AT_ALONE = (ast.FunctionDef, ast.ClassDef)


def places(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """The nodes that can be changed, each with what would be done to it."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in _behaviour(function):
            if isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPPED:
                yield node, "comparison"
            elif isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in _SWAPPED:
                yield node, "operator"
            elif isinstance(node, ast.If | ast.While | ast.IfExp):
                yield node, "condition"
            elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
                yield node, "constant"
            elif isinstance(node, _LEFT_OUT) and not _says_nothing(node, function):
                yield node, "left out"


def _behaviour(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function that decide what it does, without functions inside it.

    Annotations and type aliases are for readers, and decorators of functions here say what a
    function is (a property) or how many of its answers a cache keeps: no test can see these change.
    """
    waiting: deque[ast.AST] = deque([function])
    while waiting:
        node = waiting.popleft()
        yield node
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns", "decorator_list"):
                waiting.extend(
                    each
                    for each in (value if isinstance(value, list) else [value])
                    if isinstance(each, ast.AST) and not isinstance(each, _LOOKED_AT_ALONE)
                )


def _says_nothing(node: ast.AST, function: ast.FunctionDef) -> bool:
    """Whether it is a docstring, or a function's closing `return None`."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    closing = function.body[-1]
    return node is closing and ast.unparse(closing) in ("return", "return None")


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


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A changed copy of a file.

    Attributes:
        lines, function: where the change is: its statement, and the function around it.
        shown: the difference, for a human.
    """

    file: Path
    source: str
    lines: range
    function: range
    shown: str


def mutants(count: int, seed: int) -> list[Mutant]:
    """So many of them, drawn without repetition."""
    all_places = [
        (file, number)
        for file in sorted((ROOT / CORE).glob("*.py"))
        for number, _ in enumerate(places(ast.parse(file.read_text())))
    ]
    return [
        _mutant(file, number)
        for file, number in random.Random(seed).sample(all_places, min(count, len(all_places)))
    ]


def _mutant(file: Path, number: int) -> Mutant:
    tree = ast.parse(file.read_text())
    before = ast.unparse(tree)
    changed = copy.deepcopy(tree)
    node, kind = list(places(changed))[number]
    around = [
        each
        for each in ast.walk(changed)
        if isinstance(each, ast.stmt) and any(inner is node for inner in ast.walk(each))
    ]
    statement = min(around, key=lambda each: len(list(ast.walk(each))))
    lines = _own_lines(statement)
    function = min(
        (_all_lines(each) for each in around if isinstance(each, ast.FunctionDef)), key=len
    )
    change(node, kind)
    after = ast.unparse(ast.fix_missing_locations(changed))
    difference = [
        text
        for text in difflib.unified_diff(before.splitlines(), after.splitlines(), n=0)
        if text[:1] in "+-" and text[:3] not in ("---", "+++")
    ]
    shown = f"{file.name}:{lines.start} {kind}: {difference}"
    return Mutant(file=file, source=after, lines=lines, function=function, shown=shown)


def _all_lines(statement: ast.stmt) -> range:
    return range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)


def _own_lines(statement: ast.stmt) -> range:
    """The lines of a statement, without those of the statements in it."""
    body = getattr(statement, "body", None)
    if not body:
        return _all_lines(statement)
    return range(statement.lineno, max(statement.lineno + 1, body[0].lineno))


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson, 1927)."""
    share = successes / trials
    centre = share + z * z / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return (centre - half) / (1 + z * z / trials), (centre + half) / (1 + z * z / trials)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    suite = Suite(ROOT, TESTS, sorted((ROOT / CORE).glob("*.py")))
    print(f"{suite.count} tests pass without any change", flush=True)
    alive, began_s = 0, time.monotonic()
    for number, mutant in enumerate(mutants(count, seed), 1):
        found = suite.find(mutant.file, mutant.source, mutant.lines, mutant.function)
        if found is None:
            alive += 1
            print(f"survived: {mutant.shown}", flush=True)
        low, high = wilson(alive, number)
        each_s = (time.monotonic() - began_s) / number
        print(
            f"{number}: {alive} survive, {low:.1%} to {high:.1%}; {each_s:.1f} s each", flush=True
        )


if __name__ == "__main__":
    main()
