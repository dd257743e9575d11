"""`python -m testbed VERB`, the same as `./lab VERB`; turns errors into exit statuses."""

from __future__ import annotations

import errno
import io
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

try:
    import typer

    from testbed.cli.verbs import app
    from testbed.lab.kernel import privileges
    from testbed.shared.input_error import shown
    from testbed.shared.registry import one_of
    from testbed.shared.run_directory import InUseError
    from testbed.shared.yaml_input import InputError
except ModuleNotFoundError as error:
    if (error.name or "").startswith("testbed"):
        raise
    # `pip install .` alone gives the transport.
    print(
        f"lab: the package {error.name!r} is not installed; ./lab sets it up in a "
        "clone of the project",
        file=sys.stderr,
    )
    sys.exit(2)

_INTERRUPTED = 130
_received = 0  # the exit status of a signal that was taken as Ctrl-C


def main() -> None:
    """Run a verb; bad input is a line for each problem and exit status 2, an interruption is 130.

    SIGTERM, which batch systems and `timeout` send, and SIGHUP end a run as Ctrl-C does: with a
    verdict, and with the command that continues. The status is 128 and the signal's number.
    """
    # A user's settings of matplotlib change no figure, and a wrong one would end its import.
    os.environ["MATPLOTLIBRC"] = os.devnull
    os.environ.pop("MPLBACKEND", None)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # `nohup` ignores one of them
            signal.signal(number, _interrupt)
    if trouble := privileges.become_caller(Path(__file__).resolve().parents[1]):
        print(f"lab: {trouble}", file=sys.stderr)
    _forget_empty_screen()
    if isinstance(sys.stdout, io.TextIOWrapper):  # of an encoding that may lack a character
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        words = _with_default_host(_in_utf8(sys.argv[1:]))
        status = app(words, standalone_mode=False, prog_name="./lab")
        if status == _INTERRUPTED:  # typer's answer to Ctrl-C
            raise KeyboardInterrupt
    except (InputError, InUseError) as error:
        status = max(_complain(str(line), 2) for line in error.args)
    except (typer.Abort, KeyboardInterrupt):
        status = _complain(_interruption(sys.argv[1:]), _received or _INTERRUPTED)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT, errno.EFBIG):
            raise
        status = _complain(f"{error.filename or 'results'}: {os.strerror(error.errno or 0)}", 2)
    except Exception as error:
        if not hasattr(error, "exit_code"):  # typer's usage errors carry one
            raise
        status = _complain(_usage_error(error), int(error.exit_code))
    sys.exit(status or 0)


def _interrupt(number: int, _: Any) -> None:
    global _received
    _received = 128 + number
    raise KeyboardInterrupt


def _in_utf8(arguments: list[str]) -> list[str]:
    """Refuses a word of other bytes: no file of results, nor polars, can hold such a name."""
    for word in arguments:
        try:
            os.fsencode(word).decode("utf-8")
        except UnicodeDecodeError:
            raise InputError(f"{word!a}: no UTF-8; valid: names in UTF-8") from None
    return arguments


def _forget_empty_screen() -> None:
    """Ignores a screen of no columns, which editors hand down: rich would print into it."""
    for name in ("COLUMNS", "LINES"):
        if not os.environ.get(name, "").strip("0"):
            os.environ.pop(name, None)


def _with_default_host(arguments: list[str]) -> list[str]:
    """Gives a `--pcap` without hosts its default, which typer's options cannot have."""
    completed = []
    for index, word in enumerate(arguments):
        following = arguments[index + 1 : index + 2]
        alone = word == "--pcap" and (not following or following[0].startswith("-"))
        completed.append("--pcap=server" if alone else word)
    return completed


def _interruption(arguments: list[str]) -> str:
    """Name, after Ctrl-C, the whole command that continues, where there is one."""
    if not arguments or arguments[0] not in ("run", "simulate"):
        return "interrupted"
    words = [argument for argument in arguments if argument != "--anew"]
    return f"interrupted; this continues: {shlex.join(['./lab', *words])}"


def _complain(message: str, status: int) -> int:
    print(f"lab: {' '.join(message.splitlines())}", file=sys.stderr)
    return status


def _usage_error(error: Any) -> str:
    """One line for a usage error of typer, which tells them apart by names of no public classes."""
    kind, context = type(error).__name__, getattr(error, "ctx", None)
    words = str(error.format_message()).rstrip(".")
    if context is None:
        return words
    verb, command = context.info_name, context.command
    if kind == "NoSuchOption":
        valid = [opt for parameter in command.params for opt in parameter.opts if opt[:1] == "-"]
        return f"{verb}: {words}; valid: {', '.join(valid) or 'none'}"
    if kind == "BadParameter" and error.param is not None:
        return _bad_value(error)
    if kind == "MissingParameter" and error.param.name == "kind":
        words += f"; valid: {error.param.help}"
    elif hasattr(command, "commands"):
        wrong = context.args[0] if context.args else error.message.partition("'")[2].split("'")[0]
        return f"no verb {wrong!r}; {one_of(wrong, command.commands)}"
    return f"{verb}: {words}{_example(command)}"


def _bad_value(error: Any) -> str:
    option, cause = error.param, error.__cause__
    names = "/".join(option.opts)
    if option.min is None or not hasattr(cause, "errors"):  # pydantic's, by which typer converts
        return f"{names}: {error.message}"
    bounds = f" from {option.min} to {option.max}"
    if option.max is None:
        bounds = f" of {option.min} or more"
    return f"{names}: {shown(cause.errors()[0]['input'])}: must be a whole number{bounds}"


def _example(command: Any) -> str:
    """The example that the verb's help shows, as the end of a message."""
    example = (command.epilog or "").partition("Example: ")[2].split("    ")[0]
    return f"; for example: {example}" if example else ""


if __name__ == "__main__":
    main()
