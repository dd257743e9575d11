"""The reference of the verbs, from the command line's own declarations."""

from __future__ import annotations

from typing import Any

import typer

from testbed.cli.verbs import app
from testbed.documentation import markup


def commands() -> dict[str, Any]:
    """Every verb's command by name, in the order of the help text."""
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def reference() -> str:
    """A section for each verb: what it does, how it is called, its options, an example."""
    return "\n".join(_verb(name, command) for name, command in commands().items())


def _verb(name: str, command: Any) -> str:
    context = command.make_context(f"./lab {name}", [], resilient_parsing=True)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    example = (command.epilog or "").removeprefix("Example: ")
    rows = [
        (markup.code(names), markup.sentence(text.replace("  [", " [")))
        for names, text in (each.get_help_record(context) for each in command.params)
    ]
    parts = [
        f"## {name}\n",
        f"{command.help}\n",
        f"```text\n{usage}\n```\n",
        markup.table(("argument or option", "meaning"), rows) if rows else "",
        f"Example: `{example}`\n" if example else "",
    ]
    return "\n".join(part for part in parts if part)
