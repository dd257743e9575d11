import pytest

from testbed.shared.problems import Problem, explain


@pytest.mark.parametrize(
    ("problems", "line"),
    [
        ([("a", "bad")], "a: bad"),
        ([("a", "bad"), ("b", "bad")], "a: bad"),
        ([("a", "bad"), ("b", "worse"), ("c", "worse")], "a: bad (and 1 more problem: b)"),
        ([("a", "bad"), ("", "all: wrong")], "a: bad (and 1 more problem)"),
    ],
)
def test_further_problems_are_counted_by_message_and_named_by_place(problems, line):
    given = [Problem((place,) if place else (), message) for place, message in problems]
    assert explain(given) == line
