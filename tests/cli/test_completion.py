"""Completion, as shells do it: each script is read by its shell and asked what may follow."""

import shutil
import subprocess
from typing import Any

import pytest
import typer

from testbed import experiment
from testbed.cli import completion
from testbed.cli.verbs import app
from testbed.shared.input_error import InputError

GROUP: Any = typer.main.get_command(app)
COMMANDS = GROUP.commands


def in_bash(script, words, folder):
    """What bash offers for the last of the words."""
    asked = """source "$1"; shift; COMP_WORDS=(./lab "$@"); COMP_CWORD=$#; _lab
printf '%s\n' "${COMPREPLY[@]}" """
    done = subprocess.run(
        ["bash", "--norc", "-c", asked, "bash", script, *words],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture
def ask(tmp_path):
    def asked(*words):
        path = tmp_path / "lab.bash"
        path.write_text(completion.script("bash", COMMANDS))
        folder = tmp_path / "here"
        folder.mkdir(exist_ok=True)
        (folder / "mine.yaml").touch()
        return in_bash(str(path), words, folder)

    return asked


def test_bash_offers_every_verb_and_every_option_of_it(ask):
    assert ask("") == list(COMMANDS)
    assert ask("comp") == ["compare", "completion"]
    for name in ("run", "report", "bench"):
        options = {option for each in COMMANDS[name].params for option in each.opts}
        options = {option for option in options if option.startswith("-")}
        assert set(ask(name, "-")) == options | {"--help"}


def test_bash_offers_names_of_experiments_and_files_where_a_verb_takes_them(ask):
    assert set(ask("run", "")) == {*experiment.names(), "mine.yaml"}
    assert "quick" in ask("report", "fan-in", "qui")  # several may be named
    assert ask("list", "") == []


def test_bash_offers_the_values_of_options_and_words(ask):
    assert ask("run", "quick", "--profile", "s") == ["server", "slow"]
    assert ask("run", "--out", "") == ["mine.yaml"]
    assert ask("completion", "") == ["bash", "zsh", "fish"]
    assert ask("new", "top") == ["topology"]


def test_the_offered_profiles_and_kinds_are_those_that_verbs_take():
    assert set(completion._WORDS["--profile"]) == {
        name for each in ("quick", "accuracy") for name in experiment.profile_names(each)
    }
    assert all(name in COMMANDS for name in completion._WORDS if name[:1] != "-")


def test_another_shell_is_named_with_those_that_are_valid():
    with pytest.raises(InputError, match="unknown shell 'ksh'; valid: bash, zsh, fish"):
        completion.script("ksh", COMMANDS)


# The lab installs neither; bash is everywhere, and the next test looks at the scripts of all.
@pytest.mark.parametrize("shell", [each for each in completion.SHELLS if shutil.which(each)])
def test_a_shell_that_is_here_can_read_its_script(shell, tmp_path):
    path = tmp_path / "script"
    path.write_text(completion.script(shell, COMMANDS))
    subprocess.run([shell, "-n", path], check=True)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_of_other_shells_have_every_verb_and_option(shell):
    script = completion.script(shell, COMMANDS)
    start = {"zsh": "    {})", "fish": "complete -c lab -n '__fish_seen_subcommand_from {}'"}[shell]
    long = {"zsh": "*{}[", "fish": " -l {} "}[shell]
    short = {"zsh": "*{}[", "fish": " -s {} "}[shell]
    for name, command in COMMANDS.items():
        lines = [line for line in script.splitlines() if line.startswith(start.format(name))]
        for option in (each for param in command.params for each in param.opts):
            if option.startswith("-"):
                form = long if option.startswith("--") else short
                word = form.format(option.lstrip("-") if shell == "fish" else option)
                assert any(word in line for line in lines), (name, option)
