"""What is wrong with a command line, in words: the option, what was given, what is valid."""

from __future__ import annotations

import difflib
from typing import Any

from testbed.shared.input_error import shown
from testbed.shared.registry import one_of


def in_words(error: Any) -> str:
    """One line for a usage error of typer, which tells them apart by names of no public classes."""
    kind, context = type(error).__name__, getattr(error, "ctx", None)
    if kind == "BadOptionUsage":
        needs = "requires" in error.message
        return f"{error.option_name}: {'needs a value' if needs else 'takes no value'}"
    if context is None:
        return str(error.format_message())
    verb, command = context.info_name, context.command
    if kind == "NoSuchOption":
        valid = [each for parameter in command.params for each in parameter.opts if each[:1] == "-"]
        wrong = error.option_name
        # Without the hyphens, in which all options are alike.
        nearest = difflib.get_close_matches(wrong.lstrip("-"), [each.lstrip("-") for each in valid])
        near = f"; did you mean '--{nearest[0]}'?" if nearest else ""
        options = ", ".join(valid) or "none"
        return f"{verb}: no option {wrong}; valid: {options}{near}"
    if kind == "MissingParameter":
        name = (error.param.metavar or error.param.name).upper()
        kinds = f"; valid: {error.param.help}" if name == "KIND" else ""
        return f"{verb}: {name} is missing{kinds}{_example(command)}"
    if kind == "BadParameter" and error.param is not None:
        return _bad_value(error)
    if hasattr(command, "commands"):
        wrong = context.args[0] if context.args else error.message.partition("'")[2].split("'")[0]
        return f"no verb {wrong!r}; {one_of(wrong, command.commands)}"
    _, extra, words = str(error.message).partition("unexpected extra argument(s) (")
    said = f"one word too many: {words[:-1]}" if extra else error.format_message().rstrip(".")
    return f"{verb}: {said}{_example(command)}"


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
