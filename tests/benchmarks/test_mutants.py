"""The draw of mutants changes what decides how the core behaves, and asks the tests that run it."""

import ast
import textwrap

from tests.benchmarks.mutant_tests import Suite
from tests.benchmarks.mutants import change, places


def changed(source: str) -> list[tuple[str, str]]:
    """Every place of a module: what is done to it, and the expression or statement it is."""
    tree = ast.parse(textwrap.dedent(source))
    return [(kind, ast.unparse(node)) for node, kind, _, _ in places(tree)]


def test_what_only_readers_see_is_left_alone() -> None:
    assert not changed(
        '''
        Bytes = bytes | bytearray

        @lru_cache(maxsize=16)
        def parse(data: bytes | None, *rest: int | str, **more: int | str) -> int | None:
            """Parses: a docstring."""
            found: list[int | None]
            return None
        '''
    )


def test_what_decides_is_changed_once_even_in_a_function_inside_another() -> None:
    source = """
        def outer(limit: int = 3) -> int | None:
            def inner(n: int | None) -> bool:
                return n < limit
            found: int | None = limit + 1
            return found if inner(found) else None
        """
    assert sorted(changed(source)) == [
        ("comparison", "n < limit"),
        ("condition", "found if inner(found) else None"),
        ("constant", "1"),
        ("constant", "3"),
        ("left out", "return found if inner(found) else None"),
        ("left out", "return n < limit"),
        ("operator", "limit + 1"),
    ]


def test_every_change_is_one() -> None:
    source = """
        def move(a, b):
            if a <= b and a is not None:
                a += 2
                raise ValueError(a)
            while True:
                del b[a]
                continue
            return a // b
        """
    tree = ast.parse(textwrap.dedent(source))
    for number in range(len(list(places(tree)))):
        copy = ast.parse(textwrap.dedent(source))
        change(*list(places(copy))[number][:2])
        assert ast.unparse(copy) != ast.unparse(tree)


def test_a_change_meets_the_tests_that_run_it_also_those_that_do_so_at_import(tmp_path) -> None:
    code = tmp_path / "found.py"
    source = "def once():\n    return 1\n\n\ndef twice():\n    return 2\n"
    code.write_text(source)
    (tmp_path / "test_found.py").write_text(
        "import found\n\nONCE = found.once()\n\n\n"
        "def test_one():\n    assert ONCE == 1\n\n\n"
        "def test_two():\n    found.twice()\n"
    )
    suite = Suite(tmp_path, ["test_found.py"], [code])
    assert suite.count == 2
    for before, after, lines, why in (
        ("1", "3", range(2, 3), "one of 2 tests"),
        ("2", "3", range(6, 7), None),
    ):
        changed_source = source.replace(f"return {before}", f"return {after}")
        assert suite.find(code, changed_source, lines, lines) == why
