"""What the draw of mutants may change: only what decides how the core behaves."""

import ast
import textwrap

from tests.benchmarks.mutants import change, places


def changed(source: str) -> list[tuple[str, str]]:
    """Every place of a module: what is done to it, and the expression or statement it is."""
    return [(kind, ast.unparse(node)) for node, kind in places(ast.parse(textwrap.dedent(source)))]


def test_what_only_readers_see_is_left_alone() -> None:
    assert not changed(
        '''
        Bytes = bytes | bytearray

        @lru_cache(maxsize=16)
        def parse(data: bytes | None, *rest: int | str, **more: int | str) -> int | None:
            """Parses: a docstring."""
            found: list[int | None]
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
        change(*list(places(copy))[number])
        assert ast.unparse(copy) != ast.unparse(tree)
