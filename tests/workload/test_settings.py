"""The section `workload` and the arms beside it: what is valid, and the lines for all else."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed import experiment
from testbed.run import requirements
from testbed.shared.input_error import InputError

SERVER = {"host": "server", "run": "true -s", "service": True}
CLIENT = {"host": "worker-1", "run": ["true", "-c", "server"], "after": "server"}
SMALL: dict[str, Any] = {
    "name": "mine",
    "seeds": [1],
    "topology": {"name": "star", "workers": 2},
    "workload": {"kind": "programs", "programs": [SERVER, CLIENT]},
}


def load(folder: Path, document: dict[str, Any], **options: Any) -> list[Any]:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return experiment.load(str(path), **options)


def assert_refused(folder: Path, document: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as caught:
        load(folder, document)
    line = str(caught.value).removeprefix(f"{folder / 'mine.yaml'}: ")
    assert re.fullmatch(".*".join(map(re.escape, says.split("..."))), line), line


def with_programs(*programs: dict[str, Any], **further: Any) -> dict[str, Any]:
    return {**SMALL, "workload": {"kind": "programs", "programs": list(programs)}, **further}


def commands(run: Any) -> dict[str, list[str]]:
    return {program["name"]: program["run"] for program in run.config()["workload"]["programs"]}


def test_programs_need_no_rounds_no_arms_and_no_training(tmp_path: Path) -> None:
    (run,) = load(tmp_path, SMALL)
    config = run.config()
    assert run.arm == "programs"
    assert not {"rounds", "training", "transport", "phases", "protocol", "arms"} & config.keys()
    assert commands(run) == {"server": ["true", "-s"], "worker-1": ["true", "-c", "server"]}


def test_a_list_and_a_text_are_the_same_run_and_another_command_is_none(tmp_path: Path) -> None:
    (one,) = load(tmp_path, SMALL)
    (same,) = load(tmp_path, with_programs({**SERVER, "run": ["true", "-s"]}, CLIENT))
    (other,) = load(tmp_path, with_programs({**SERVER, "run": "true '-s '"}, CLIENT))
    (elsewhere,) = load(tmp_path, with_programs(SERVER, {**CLIENT, "environment": {"DEBUG": "1"}}))
    assert one.key == same.key
    assert len({one.key, other.key, elsewhere.key}) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("grep '|' x", ["grep", "|", "x"]),
        ("tcpdump 'port > 100'", ["tcpdump", "port > 100"]),
        (r'awk "\"$1\" > 3; 4" f', ["awk", '"$1" > 3; 4', "f"]),
        (r"echo \> \;", ["echo", ">", ";"]),
        ("curl http://x/?a=b&c=d", ["curl", "http://x/?a=b&c=d"]),
    ],
)
def test_what_only_a_shell_understands_may_be_an_argument_in_quotes(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    (run,) = load(tmp_path, with_programs({"host": "server", "run": text}))
    assert run.config()["workload"]["programs"][0]["run"] == words


def test_arms_change_all_programs_or_single_ones(tmp_path: Path) -> None:
    arms = {
        "all": {"congestion_control": "cubic"},
        "one": {"worker-1": {"run": "true --fast", "time_limit_s": 3}},
    }
    first, second = load(tmp_path, {**SMALL, "arms": arms})
    controls = [entry["congestion_control"] for entry in first.config()["workload"]["programs"]]
    assert controls == ["cubic", "cubic"]
    assert commands(second)["worker-1"] == ["true", "--fast"]
    assert second.config()["workload"]["programs"][1]["time_limit_s"] == 3


def test_options_of_the_command_line_and_factors_work(tmp_path: Path) -> None:
    swept = {**SMALL, "factors": {"workload.programs.1.run": ["true 1", "true 2"]}}
    runs = load(tmp_path, swept, congestion_control="bbr", seeds=2)
    assert {run.arm for run in runs} == {"programs@congestion_control=bbr"}
    assert [commands(run)["worker-1"] for run in runs] == [["true", "1"], ["true", "2"]] * 2
    (run,) = load(tmp_path, SMALL, overrides=["workload.programs.1.run=true 3"])
    assert commands(run)["worker-1"] == ["true", "3"]


def test_a_changed_file_that_a_command_names_is_another_run(tmp_path: Path) -> None:
    programs = with_programs({"host": "server", "run": "python3 mine.py"})
    (tmp_path / "mine.py").write_text("pass")
    (before,) = load(tmp_path, programs)
    (tmp_path / "mine.py").write_text("print()")
    (after,) = load(tmp_path, programs)
    assert before.key != after.key
    assert list(after.code) == [str(tmp_path / "mine.py")]


def test_an_argument_that_no_file_can_have_as_its_name_is_an_argument(tmp_path: Path) -> None:
    words = ["true", "x" * 5000, "a\nb", "a\0b", ".."]
    (run,) = load(tmp_path, with_programs({"host": "server", "run": words}))
    assert run.code == {}
    assert commands(run)["server"] == words


def workload(**keys: Any) -> dict[str, Any]:
    return {**SMALL, "workload": {**SMALL["workload"], **keys}}


def running(run: Any, **keys: Any) -> dict[str, Any]:
    return with_programs({"host": "server", "run": run, **keys})


WRONG: dict[str, dict[str, Any]] = {
    "0.host: unknown host 'sever'; valid: ...did you mean 'server'?": with_programs(
        {**SERVER, "host": "sever"}, CLIENT | {"after": None}
    ),
    "1.after: no program 'servr' stands above; valid: server; did ...": with_programs(
        SERVER, {**CLIENT, "after": "servr"}
    ),
    "0.after: no program 'worker-1' stands above; ...": with_programs(
        {**SERVER, "after": "worker-1"}, {**CLIENT, "after": None}
    ),
    "0.run: ''...is empty;...": running(""),
    "0.run: []...is empty;...": running([]),
    "0.run: ...no shell reads this, so '>' would be an...": running("true x\\>>y"),
    **{
        f"0.run: {value}must be a program and its arguments, as a...": running(run)
        for run, value in ((5, "5: "), (True, "true: "), (None, "nothing (null): "))
    },
    "0.run: ...No closing quotation": running("echo 'open"),
    "1.name: 'worker-1' is taken by programs.0; give them distinct names": with_programs(
        CLIENT | {"after": None}, CLIENT | {"after": None}
    ),
    "0.time_limit_s: has no meaning for a service, which ends with the others; valid: none": (
        with_programs({**SERVER, "time_limit_s": 3}, CLIENT)
    ),
    "0.after_timeout_s: has no meaning without after; valid: none": running(
        "true", after_timeout_s=5
    ),
    "0.name: 'controller': a part of the lab has this name...": running("true", name="controller"),
    "0.environment...A B...valid: names of variables, as DEBUG": running(
        "true", environment={"A B": "1"}
    ),
    "1.output: 'log': programs.0 writes it, too": with_programs(
        {**SERVER, "output": "log"}, {**CLIENT, "output": "log"}
    ),
    "1.congestion_control: 'bbr': programs.0 sets 'cubic' for host ...": with_programs(
        {"host": "server", "run": "true", "congestion_control": "cubic"},
        {"host": "server", "run": "true", "congestion_control": "bbr", "name": "b"},
    ),
}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        *((document, f"workload.programs.{says}") for says, document in WRONG.items()),
        (with_programs(SERVER), "workload.programs: all are services, so nothing..."),
        (workload(data_ports=[9, 3]), "workload.data_ports: [9, 3]: valid: the lower one first"),
        (
            workload(data_ports=[0, 3]),
            "workload.data_ports.0: 0: must be a whole number from 1 to 65_535",
        ),
        ({**SMALL, "training": {"model": "mlp"}}, "training: belongs to the built-in training,..."),
        ({**SMALL, "workload": {"kind": "program"}}, "workload.kind: unknown workload..."),
        (
            {**SMALL, "arms": {"a": {"protocol": "dblp"}}},
            "arms.a.protocol: unknown key; valid: congestion_control, server, worker-1",
        ),
        (
            {**SMALL, "arms": {"a": {"worker-1": {"runn": "x"}}}},
            "arms.a.worker-1.runn: unknown key; valid: ...; did you mean 'run'?",
        ),
        (
            {**SMALL, "impairments": [{"kind": "loss", "rounds": {"every": 3}, "q": 0.1}]},
            "impairments.0.rounds: has no end; valid: with until...",
        ),
    ],
)
def test_wrong_input_is_one_line(tmp_path: Path, document: dict[str, Any], says: str) -> None:
    assert_refused(tmp_path, document, says)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("./tool -x", "'./tool': no such file; looked in FOLDER"),
        ("./plain", "'./plain': is no executable file; valid: 'chmod +x' it, or [python3, FILE]"),
        ("./folder", "'./folder': is no executable file; valid: ..."),
        ("python3 -u my.py 3", "'my.py': no such file; looked in FOLDER"),
        ("/usr/bin/python3.11 below/my.py", "'below/my.py': no such file; looked in FOLDER"),
        *((command, "") for command in ("python3 plain", "python3 -m http.server", "python3 - x")),
        *((command, "") for command in ("sh -c 'exec my.py'", "no-such-program my.py", "sh")),
    ],
)
def test_a_file_that_a_command_names_must_be_there(tmp_path: Path, command: str, says: str) -> None:
    (tmp_path / "plain").touch(mode=0o644)
    (tmp_path / "folder").mkdir()
    programs = with_programs(SERVER, {**CLIENT, "run": command})
    in_arm = {**SMALL, "arms": {"mine": {"worker-1": {"run": command}}}}
    for document, key in (
        (programs, "workload.programs.1.run"),
        (in_arm, "arms.mine.worker-1.run"),
    ):
        runs = load(tmp_path, document)
        if not says:
            requirements.refuse(runs)
            continue
        with pytest.raises(InputError) as caught:
            requirements.refuse(runs)
        line = f"{tmp_path / 'mine.yaml'}: {key}: {says.replace('FOLDER', str(tmp_path))}"
        assert re.fullmatch(re.escape(line).replace(r"\.\.\.", ".*"), str(caught.value))


def test_a_program_that_is_not_there_is_named_with_its_host(tmp_path: Path) -> None:
    (run,) = load(tmp_path, with_programs(SERVER, {**CLIENT, "run": "no-such-program -x"}))
    config = run.config()
    lacking = requirements.lacking(config, [], [])
    assert lacking == "there is no program 'no-such-program', for worker-1 on host 'worker-1'"
    (run,) = load(tmp_path, with_programs({"host": "server", "run": "./mine.sh"}))
    assert requirements.lacking(run.config(), [], []) is not None
    (tmp_path / "mine.sh").touch(mode=0o755)
    assert requirements.lacking(run.config(), [], []) is None
