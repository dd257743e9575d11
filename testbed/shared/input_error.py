"""The error that bad input raises, in a file that needs the standard library alone."""

from typing import Any

_MOST_SHOWN = 60
_LONGEST_LINE = 4_000


class InputError(ValueError):
    """Bad input: each message is one line for the user; the exit status is 2."""

    def __init__(self, *messages: str) -> None:
        # What came from the input may hold control characters.
        super().__init__(*(_printable(message) for message in messages))

    def __str__(self) -> str:
        return "\n".join(self.args)


def _printable(message: str) -> str:
    if len(message) > _LONGEST_LINE:  # somebody's value of a megabyte
        message = f"{message[: _LONGEST_LINE - 500]} ... {message[-500:]}"
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in message)


def shown(value: Any) -> str:
    """Write a value for a message: on one line, in YAML's words, and not too long."""
    if value is None:
        return "nothing (null)"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."
