"""Scripts that complete `./lab`'s words in a shell, made from the verbs' own declarations.

A script holds all verbs and options and looks up experiments itself, so that pressing Tab starts
neither Python nor `./lab`, which might set up packages.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.cli import new_file
from testbed.cli.benchmarks import VALID as BENCHMARKS
from testbed.experiment import EXPERIMENTS
from testbed.shared.input_error import InputError
from testbed.shared.registry import one_of

SHELLS = ("bash", "zsh", "fish")
_NAMES = ("EXPERIMENT", "WHAT", "WHAT...", "RUN")
_WORDS = {
    "completion": SHELLS,
    "new": (new_file.EXPERIMENT, *new_file.KINDS),
    "bench": BENCHMARKS,
    "--controller": ("ryu", "os-ken"),
    "--profile": ("laptop", "server", "paper", "slow"),
}


@dataclass(frozen=True, kw_only=True)
class Verb:
    """What may follow a verb.

    Attributes:
        options: each option and what it means.
        taking_value: those options that a value follows.
        words: the valid words of its first argument, where they are fixed.
        takes_name: whether an argument may name an experiment.
        takes_files: whether one may be a file or a folder.
        help: what it does, in one line.
    """

    options: Mapping[str, str]
    taking_value: tuple[str, ...]
    words: tuple[str, ...]
    takes_name: bool
    takes_files: bool
    help: str


def script(shell: str, commands: Mapping[str, Any]) -> str:
    """The script for a shell, of typer's commands by their names.

    Raises:
        InputError: another shell.
    """
    makers = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    if shell not in makers:
        raise InputError(f"unknown shell {shell!r}; {one_of(shell, SHELLS)}")
    return makers[shell]({name: _verb(name, each) for name, each in commands.items()})


def _verb(name: str, command: Any) -> Verb:
    given = [each for each in command.params if each.opts[0].startswith("-")]
    arguments = [each for each in command.params if each not in given]
    return Verb(
        options={
            **{option: str(each.help) for each in given for option in each.opts},
            "--help": "show what the verb takes",
        },
        taking_value=tuple(option for each in given if not each.is_flag for option in each.opts),
        words=tuple(_WORDS.get(name, ())),
        takes_name=any(each.metavar in _NAMES for each in arguments),
        takes_files=len(arguments) > (name in _WORDS),
        help=str(command.help).partition("\n")[0],
    )


def _words(words: Any) -> str:
    return shlex.quote(" ".join(words))


_BASH = """\
# Completion of ./lab for bash. In ~/.bashrc:  source <(./lab completion bash)
_lab() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
    local verb=${{COMP_WORDS[1]}}
    local options= valued= words= named= files=
    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        COMPREPLY=($(compgen -W {verbs} -- "$word"))
        return
    fi
    case $before in
{values}
    esac
    case $verb in
{cases}
    *) return ;;
    esac
    case " $valued " in
    *" $before "*) COMPREPLY=($(compgen -f -- "$word")); return ;;
    esac
    if [[ $word = -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$word"))
        return
    fi
    if [ -n "$named" ]; then
        local each
        for each in {folder}/*.yaml; do
            each=${{each##*/}}
            words+=" ${{each%.yaml}}"
        done
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    if [ -n "$files" ]; then
        COMPREPLY+=($(compgen -f -- "$word"))
    fi
}}
complete -o filenames -F _lab lab
"""


def _bash(verbs: Mapping[str, Verb]) -> str:
    values = [
        f'    {option}) COMPREPLY=($(compgen -W {_words(words)} -- "$word")); return ;;'
        for option, words in _WORDS.items()
        if option.startswith("-")
    ]
    cases = [
        f"    {name}) options={_words(each.options)} valued={_words(each.taking_value)} "
        f"words={_words(each.words)} {_flag('named', each.takes_name)} "
        f"{_flag('files', each.takes_files)} ;;"
        for name, each in verbs.items()
    ]
    return _BASH.format(
        verbs=_words(verbs),
        values="\n".join(values),
        cases="\n".join(cases),
        folder=shlex.quote(str(EXPERIMENTS)),
    )


def _flag(name: str, is_set: bool) -> str:
    return f"{name}={'yes' if is_set else ''}"


_ZSH = """\
#compdef lab
# Completion of ./lab for zsh. In ~/.zshrc, after compinit:  source <(./lab completion zsh)
_lab_names() {{
    local -a found
    found=({folder}/*.yaml(N:t:r))
    compadd -a found
    _files
}}
_lab() {{
    if (( CURRENT == 2 )); then
        local -a verbs
        verbs=({verbs})
        _describe verb verbs
        return
    fi
    local verb=$words[2]
    shift words
    (( CURRENT-- ))
    case $verb in
{cases}
    *) _files ;;
    esac
}}
compdef _lab lab
"""


def _zsh(verbs: Mapping[str, Verb]) -> str:
    cases = []
    for name, each in verbs.items():
        parts = [_zsh_option(option, text, each) for option, text in each.options.items()]
        if each.words:
            parts.append(shlex.quote(f"1:word:({' '.join(each.words)})"))
        if each.takes_files:
            parts.append(shlex.quote("*:what:" + ("_lab_names" if each.takes_name else "_files")))
        cases.append(f"    {name}) _arguments {' '.join(parts)} ;;")
    described = [shlex.quote(f"{name}:{each.help}") for name, each in verbs.items()]
    folder = shlex.quote(str(EXPERIMENTS))
    return _ZSH.format(folder=folder, verbs=" ".join(described), cases="\n".join(cases))


def _zsh_option(option: str, text: str, verb: Verb) -> str:
    meaning = text.replace("[", "(").replace("]", ")").replace(":", "\\:")
    value = ""
    if option in verb.taking_value:
        words = _WORDS.get(option)
        value = f":value:({' '.join(words)})" if words else ":value:_files"
    return shlex.quote(f"*{option}[{meaning}]{value}")


_FISH = """\
# Completion of ./lab for fish:  ./lab completion fish > ~/.config/fish/completions/lab.fish
function __lab_names
    for each in {folder}/*.yaml
        path basename $each | string replace -r '\\.yaml$' ''
    end
end
"""


def _fish(verbs: Mapping[str, Verb]) -> str:
    lines = [_FISH.format(folder=_fish_text(str(EXPERIMENTS)))]
    for name, each in verbs.items():
        first = "complete -c lab -n __fish_use_subcommand -f"
        lines.append(f"{first} -a {name} -d {_fish_text(each.help)}")
        here = f"complete -c lab -n '__fish_seen_subcommand_from {name}'"
        for option, text in each.options.items():
            value = ""
            if option in each.taking_value:
                words = _WORDS.get(option)
                value = f" -x -a {_fish_text(' '.join(words))}" if words else " -r"
            flag = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            lines.append(f"{here} {flag}{value} -d {_fish_text(text)}")
        if each.words:
            lines.append(f"{here} -a {_fish_text(' '.join(each.words))}")
        if each.takes_name:
            lines.append(f"{here} -a '(__lab_names)'")
    return "\n".join(lines) + "\n"


def _fish_text(text: str) -> str:
    """A word in single quotes, in which fish reads a backslash only before these two."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
