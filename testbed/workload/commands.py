"""What a program's command needs: the lab's Python, and files by their paths."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

LAB_PYTHON = "lab-python"
_PYTHON, _SHELL = re.compile(r"python[0-9.]*|lab-python"), re.compile(r"(ba|da|k|z)?sh")
_OPTIONS = re.compile(r"-[BEIPdeuvx]+")  # of theirs, those without a value


def wrong(command: Sequence[str], folder: Path) -> str:
    """What is wrong with a command's files, in words; empty: nothing that can be known."""
    program, *arguments = command
    if "/" in program:
        if said := _missing(program, folder):
            return said
        if os.path.isdir(folder / program) or not os.access(folder / program, os.X_OK):  # noqa: PTH112
            return f"{program!r}: is no executable file; valid: 'chmod +x' it, or [python3, FILE]"
    name = Path(program).name
    if not (_PYTHON.fullmatch(name) or _SHELL.fullmatch(name)):
        return ""
    script = next((argument for argument in arguments if not _OPTIONS.fullmatch(argument)), "-")
    # A shell looks for a name without a slash where programs are, too.
    if script.startswith("-") or (_SHELL.fullmatch(name) and shutil.which(script)):
        return ""
    return _missing(script, folder)


def _missing(name: str, folder: Path) -> str:
    # A word may be too long for a name: that is no file.
    if os.path.exists(folder / name):  # noqa: PTH110
        return ""
    return f"{name!r}: no such file; looked in {folder}"


def resolved(command: Sequence[str]) -> list[str]:
    """A command with the path of the lab's Python, which no configuration holds."""
    program, *arguments = command
    return [sys.executable if program == LAB_PYTHON else program, *arguments]
