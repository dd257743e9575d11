"""It counts the faults in the transport and the hook that their tests find.

    python -m tests.benchmarks.mutants draw [SEED] > tests/benchmarks/mutants.jsonl
    python -m tests.benchmarks.mutants run ROOM

`draw` chooses 100 places of each room at random and names each by its function, its statement and
what is changed there: a comparison, an operator, a condition, a constant, a statement left out. So
another version of the code can be asked about the same places; those that are gone are counted.
`run` changes one place after another in the working tree, and back; it prints what survived, for a
human to look at, and the share that the tests found. A place takes as long as its room's tests.
"""

import ast
import json
import random
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
KEPT = Path(__file__).with_suffix(".jsonl")
ROOMS = {  # what can be changed in each, as globs
    "transport": [f"testbed/transport/{folder}*.py" for folder in ("", "repair/", "congestion/")],
    "ddp": ["testbed/ddp/*.py"],
}
PER_ROOM = 100
# Those of the transport without sockets, and of the hook what takes seconds.
_SOCKETS = ("endpoint", "tcp", "tls", "stream", "udp_socket", "path_mtu", "forked", "package")
_DDP = (
    *("endpoint_thread", "settings", "equal_to_ddp", "loss", "lateness", "report", "shapes"),
    *("failures", "overlap", "coming_back"),
)
_MOST_S = 900  # whatever takes longer hangs
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
Place = dict[str, str]  # its room, function, statement, kind, and which of several alike


def places(tree: ast.Module) -> Iterator[tuple[ast.AST, str, ast.FunctionDef, ast.stmt]]:
    """The nodes that can be changed: what is done to each, its function and its statement."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node, statement in _behaviour(function):
            if isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPPED:
                yield node, "comparison", function, statement
            elif isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in _SWAPPED:
                yield node, "operator", function, statement
            elif isinstance(node, ast.If | ast.While | ast.IfExp):
                yield node, "condition", function, statement
            elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
                yield node, "constant", function, statement
            elif isinstance(node, _LEFT_OUT) and not _says_nothing(node, function):
                yield node, "left out", function, statement


def _behaviour(function: ast.FunctionDef) -> Iterator[tuple[ast.AST, ast.stmt]]:
    """The nodes of a function that decide what it does, without functions inside it."""
    waiting: deque[tuple[ast.AST, ast.stmt]] = deque([(function, function)])
    while waiting:
        node, statement = waiting.popleft()
        yield node, statement
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list"):
                continue
            for inner in value if isinstance(value, list) else [value]:
                if isinstance(inner, ast.AST) and not isinstance(
                    inner, ast.FunctionDef | ast.ClassDef
                ):
                    waiting.append((inner, inner if isinstance(inner, ast.stmt) else statement))


def _says_nothing(node: ast.AST, function: ast.FunctionDef) -> bool:
    """It is true for a docstring, and for a function's closing `return None`."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    closing = function.body[-1]
    return node is closing and ast.unparse(closing) in ("return", "return None")


def change(node: ast.AST, kind: str) -> None:
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
        node.__class__ = ast.Pass  # a statement becomes `pass`, whatever it was
        node._fields = ()  # type: ignore[misc]


def places_of(room: str) -> Iterator[tuple[Place, Path, int]]:
    """Each place of a room, by name; its file and its number there."""
    alike: dict[str, int] = {}
    for path in sorted(path for files in ROOMS[room] for path in ROOT.glob(files)):
        for number, (node, kind, function, statement) in enumerate(
            places(ast.parse(path.read_text()))
        ):
            place = {
                "room": room,
                "function": function.name,
                "kind": kind,
                "changed": _first_line(node),
                "statement": _first_line(statement),
            }
            name = json.dumps(place)
            alike[name] = alike.get(name, -1) + 1
            yield {**place, "nth": str(alike[name])}, path, number


def _first_line(node: ast.AST) -> str:
    return ast.unparse(node).split("\n")[0]


def mutant(path: Path, number: int) -> str:
    """The file's text with one change."""
    tree = ast.parse(path.read_text())
    node, kind, _, _ = list(places(tree))[number]
    change(node, kind)
    return ast.unparse(ast.fix_missing_locations(tree))


def tests_of(room: str) -> list[str]:
    """The test files that are to find changes in a room."""
    if room == "ddp":
        tests = [ROOT / f"tests/ddp/test_{name}.py" for name in _DDP]
    else:
        tests = [
            path
            for path in sorted((ROOT / "tests/transport").glob("test_*.py"))
            if not any(word in path.stem for word in _SOCKETS)
            if not {"endpoint", "socket", "multiprocessing"} & _imports(path)
        ]
    return [str(path.relative_to(ROOT)) for path in tests]


def _imports(path: Path) -> set[str]:
    """The last parts of all names that a test module imports."""
    nodes = ast.walk(ast.parse(path.read_text()))
    names = {
        part
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for part in [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
    }
    return {name.rpartition(".")[2] for name in names}


def is_found(tests: list[str], path: Path, source: str) -> bool:
    """It is true if tests fail while a file has this source; one that hangs fails."""
    before = path.read_text()
    options = ["-x", "-q", "-p", "no:cacheprovider", "--timeout", "60", "-n", "auto"]
    try:
        path.write_text(source)
        argv = [sys.executable, "-m", "pytest", *options, *tests]
        return subprocess.run(argv, cwd=ROOT, capture_output=True, timeout=_MOST_S).returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_text(before)


def main() -> None:
    if sys.argv[1] == "draw":
        for room in ROOMS:
            everything = [place for place, _, _ in places_of(room)]
            seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
            for place in random.Random(seed).sample(everything, PER_ROOM):
                print(json.dumps(place))
        return
    room = sys.argv[2]
    chosen = [place for line in KEPT.open() if (place := json.loads(line))["room"] == room]
    places = {json.dumps(place): (path, number) for place, path, number in places_of(room)}
    there = [place for place in chosen if json.dumps(place) in places]
    tests, alive, began_s = tests_of(room), 0, time.monotonic()
    for count, place in enumerate(there, 1):
        path, number = places[json.dumps(place)]
        if not is_found(tests, path, mutant(path, number)):
            alive += 1
            print(f"survived: {json.dumps(place)}", flush=True)
        mean_s = (time.monotonic() - began_s) / count
        print(f"{count} of {len(there)}: {alive} survive; {mean_s:.1f} s each", flush=True)
    print(f"{room}: {len(chosen) - len(there)} places gone; of {len(there)}, {alive} survive")


if __name__ == "__main__":
    main()
