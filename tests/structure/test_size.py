"""No room is above its budget; raising one is a commit of its own that says why."""

from tests.structure import size


def test_no_room_is_above_its_budget():
    excesses = size.excesses()
    assert not excesses, f"{size.table()}\n\n" + "\n".join(excesses)


def test_four_counts_of_a_file():
    head = '"""Two\nlines."""\n\n# why\na = (1 +\n     2)\n\n'
    source = head + 'def f():\n    """One."""\n    return a\n'
    assert size.measure(source) == size.Size(files=1, lines=10, code=4, statements=5)
