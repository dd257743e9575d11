"""Leading processes that run the code of others, which may say anything."""

import os

import pytest

from testbed.bench import conductor

FIGURES = b'{"figures": {"cpu_s": 1}}\n'


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b"x" * 65536, "failed: worker-1: said too much"),
        (FIGURES, "failed: worker-1: said too much"),
        (b"[" * 60000 + b"\n", "failed: worker-1: said too much"),
        (b"hello\n", "failed: worker-1: said what is no message"),
        (b"7\n", "failed: worker-1: said what is no message"),
        (b'{"error": "no time"}\n', "failed: worker-1: said what is no message"),
    ],
)
def test_one_that_never_stops_talking_is_ended_and_not_remembered(said, expected):
    def talks(player):
        _, writing = player.kept_on_exec()
        while True:
            os.write(writing, said)

    process = conductor.start(talks)
    status, figures = conductor.lead(
        {"worker-1": process}, warm_ups=0, limit_s=30.0, enough=lambda _: False
    )
    assert status == expected
    assert figures == {"worker-1": []}
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    assert len(process._unread) < 1 << 17
    assert len(process.figures) < 1 << 13
