"""The command: exit status and one line for what a person can get wrong."""

import io
import os
import re
import shutil
import subprocess
import sys

import pytest
from rich.console import Console

from testbed.__main__ import main
from testbed.cli import maintenance, terminal
from tests.analysis.build import ResultsBuilder, edited

SMALL = """
name: small
rounds: 2
seeds: [1]
topology: { name: star, workers: 2, rate_bps: 100_000_000, queue_bytes: 150_000, delay_s: 0.001 }
training:
  model: efficientnet-b0
  pace: { kind: payload-only, scale: 0.002, compute_s: 0.01 }
arms: { dblp: { protocol: dblp } }
"""


def python(*words, **options):
    options = {"timeout": 60, "check": False, **options}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, **options)


def lab(*arguments, **options):
    return python("-m", "testbed", *arguments, **options)


def test_bad_input_is_one_line_and_exit_status_2(tmp_path):
    """A sample, as a process; `wrong_inputs.yaml` has the rest."""
    done = lab("capture", "--read", "no-such.pcap", cwd=tmp_path)
    assert done.returncode == 2, done
    assert "no-such.pcap: No such file" in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert not list(tmp_path.iterdir())


def test_what_an_encoding_lacks_is_written_otherwise(tmp_path):
    (tmp_path / "small.yaml").write_text(SMALL + "description: \u00e9 and \u2014\n", "utf-8")
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = lab("plan", "small.yaml", "--yaml", cwd=tmp_path, env=ascii_only)
    assert done.returncode == 0 and "\\xe9 and \\u2014" in done.stdout, done.stderr


@pytest.fixture
def report(tmp_path, in_process):
    """Has `./lab report` report what is in `tmp_path`; returns what it prints."""

    def reported():
        status, out, err = in_process("report", "--out", tmp_path)
        assert status == 0, err
        return out

    return reported


def test_reports_of_several_experiments_are_written_at_once(tmp_path, in_process):
    names = ("one", "two")
    for name in (*names, "three"):
        ResultsBuilder(tmp_path, experiment=name).run(arm="dblp", seed=1)
    status, _, err = in_process("report", "one", "four", "--out", tmp_path)
    assert status == 2 and "no results of 'four'; valid: one, three, two" in err
    assert not (tmp_path / "one" / "report").exists()  # where one name is wrong
    status, out, err = in_process("report", "one", "two", "one", "--out", tmp_path)
    assert status == 0, err
    pages = [line for line in out.splitlines() if line.startswith("report: ")]
    assert pages == [f"report: {tmp_path / name / 'report' / 'index.html'}" for name in names]
    assert (tmp_path / "two" / "report" / "index.html").is_file()
    assert not (tmp_path / "three" / "report").exists()


def test_a_printed_table_is_the_pages(tmp_path, in_process):
    ResultsBuilder(tmp_path, experiment="one").run(arm="dblp", seed=1)
    _, out, _ = in_process("report", "one", "--out", tmp_path, "--format", "csv")
    assert (tmp_path / "one" / "report" / "main.csv").read_text() == out


def test_what_is_ok_stays_until_it_is_wanted_anew(tmp_path, in_process):
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    words = ("simulate", path, "--out", tmp_path / "out")
    status, out, err = in_process(*words)
    assert status == 0, err
    assert "[1/1] dblp, seed 1: ok" in out
    status, out, _ = in_process(*words)
    assert status == 0
    assert "1 ok: nothing is left to do; --anew executes what is ok again" in out
    status, out, _ = in_process(*words, "--anew")
    assert status == 0 and "(done before)" not in out
    assert "1 ok: all are executed anew; what was there is kept as an attempt" in out
    first, second = sorted(path.name for path in (tmp_path / "out" / "small").glob("dblp-s1-*"))
    assert second == f"{first}.attempt1"


def test_a_plan_says_how_long_runs_take_and_whether_they_would_be_ended_and_makes_nothing(
    tmp_path, in_process
):
    words = ("plan", "quick", "--out", str(tmp_path / "x"), "--arms", "dblp")
    status, out, _ = in_process(*words)
    assert status == 0 and "2 runs to do, about" in out and "caution" not in out
    limit = ("--seeds", "1", "--set", "limits.run_timeout_s=2")
    jitter = ("--set", "topology.delay_s=5ms", "--set", "topology.jitter_s=1ms")
    out = in_process(*words, *limit, *jitter)[1]
    assert "\n1 run to do, about " in out
    assert " links: 100 Mbit/s, 5 ms, jitter 1 ms, queue 150 kB" in out
    assert "\ncaution: 1 run takes longer than limits.run_timeout_s allows (2 s)" in out
    levels = 'factors={"burst": [{"label": "a", "impairments": []}, {"label": "b"}]}'
    out = in_process(*words, "--set", levels)[1]
    assert "\nimpairments (2 of 4 runs): none" in out
    assert "\nimpairments (2 of 4 runs):\n  {kind: loss, host: server, rounds: [14, " in out
    assert not list(tmp_path.iterdir())


def test_a_table_of_very_many_runs_is_shortened(tmp_path, in_process):
    words = ("quick", "--arms", "dblp", "--seeds", "400", "--out", str(tmp_path))
    _, out, _ = in_process("plan", *words)
    assert out.count("  to do") == 16
    assert "384 more" in out


def test_a_report_names_what_to_do_and_has_no_table_without_an_ok_run(tmp_path, report):
    built = ResultsBuilder(tmp_path)
    built.run(arm="dblp", seed=1, verdict="failed", reason="the server ended with signal 9")
    printed_text = report()
    (folder,) = [path.parent for path in tmp_path.glob("*/plan.json")]
    assert "no run is ok (1 failed)" in printed_text
    assert "Runs (n)" not in printed_text
    assert f"./lab explain {folder} says why" in printed_text
    assert f"./lab run {folder} runs them" in printed_text
    built.run(arm="dblp", seed=2)
    printed_text = report()
    assert "Runs (n)" in printed_text
    assert f"./lab run {folder}" in printed_text


def test_a_report_says_on_the_terminal_which_logs_are_not_whole(tmp_path, report):
    built = ResultsBuilder(tmp_path)
    logs = [built.run(arm="dblp", seed=seed) / "events" / "rounds.jsonl" for seed in range(1, 3)]
    assert "caution" not in report()
    logs[0].unlink()
    assert "caution: the logs of dblp-s1 are not whole; the page says why" in report()
    logs[1].write_bytes(logs[1].read_bytes()[:-20])
    assert "caution: the logs of dblp-s1 and of 1 more runs are not whole" in report()


def test_a_run_of_a_script_lacks_no_logs(tmp_path, report):
    directory = ResultsBuilder(tmp_path).run(arm="script", seed=1)
    with edited(directory / "config.json") as document:
        document |= {"adjustable": True, "rounds": 1, "impairments": []}
    shutil.rmtree(directory / "events")
    assert "caution" not in report()


@pytest.mark.parametrize(
    ("stopping", "config", "resumable"),
    [
        (["impairments_unmet"], {}, False),
        (["impairments_unmet", "cpu_others"], {}, True),
        (["cpu_others"], {}, True),
        (["cpu_others"], {"adjustable": False}, False),  # a script made it
        ([], {}, True),
    ],
)
def test_a_report_does_not_advise_to_resume_what_would_end_the_same(
    tmp_path, report, stopping, config, resumable
):
    built = ResultsBuilder(tmp_path)
    directory = built.run(arm="dblp", seed=1, verdict="invalid", reason="gates")
    with edited(directory / "config.json") as document:
        document |= config
    with edited(directory / "status.json") as document:
        document["gates"] = [
            {"name": key, "key": key, "value": 1, "limit": 0, "outcome": "failed", "decides": True}
            | {"repeats": key == "impairments_unmet"}
            for key in stopping
        ]
    printed_text = report()
    page = (directory.parent / "report" / "index.html").read_text()
    assert "./lab explain " in printed_text and "./lab explain " in page
    assert ("runs them" in printed_text, "runs them" in page) == (resumable, resumable)


def test_waived_gates_are_printed_once(tmp_path, report):
    directory = ResultsBuilder(tmp_path).run(arm="dblp", seed=2)
    with edited(directory / "status.json") as document:
        document["gates"] = [
            {"name": "a", "key": "cpu_others", "value": 0.4, "limit": 0.25, "outcome": "failed"}
            | {"waived": "cpu_others, by limits.waive", "decides": False}
        ]
    printed_text = report()
    assert printed_text.count("cpu_others, by limits.waive") == 1
    assert "failed or not measured in 1" in printed_text


def test_words_are_whole_in_a_pipe(tmp_path):
    narrow = {"env": {**os.environ, "COLUMNS": "40"}, "cwd": tmp_path}
    done = lab("list", **narrow)
    assert "latency of DBLP against its high tolerance, on Fashion-MNIST" in done.stdout
    label = "tcp-cubic@congestion_control=bbr"
    done = lab("plan", "quick", "--arms", label, **narrow)
    assert f"{label}-s1-" in done.stdout
    assert "\u2026" not in done.stdout


def test_usage_and_version_are_those_of_the_command_that_people_type():
    done = lab("run", "--help", env={**os.environ, "COLUMNS": "0", "LINES": "0"})  # no screen
    assert "Usage: ./lab run [OPTIONS]" in done.stdout and "Example: ./lab run" in done.stdout
    assert done.returncode == 0
    assert "Usage: ./lab explain [OPTIONS] [RUN] " in lab("explain", "--help").stdout
    assert "python -m" not in lab("--help").stdout
    done = lab("--version")
    assert re.match(r"lab \d+\.\d+\.\d+ \(", done.stdout), done
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("words", "printed_text"),
    [
        (
            ["run", "quick", "--set", "arms.dblp={protocol: ltp}", "--out", "x"],
            "this continues: ./lab run quick --set 'arms.dblp={protocol: ltp}' --out x\n",
        ),
        (
            ["simulate", "my.yaml", "--anew"],
            "interrupted; this continues: ./lab simulate my.yaml\n",
        ),
        (["test"], "interrupted\n"),
        (["bench", "transport"], "interrupted\n"),
    ],
)
def test_an_interruption_names_the_command_that_continues(words, printed_text, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("testbed.__main__.app", interrupted)
    monkeypatch.setattr("sys.argv", ["lab", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 130
    assert printed_text in capsys.readouterr().err


HEAVY = {"torch", "matplotlib", "polars", "scipy", "sklearn", "ryu", "transformers"}
ALSO_HEAVY = {"numpy", "networkx", "mininet", "testbed.experiment.schema"}


@pytest.mark.parametrize(
    ("commands", "heavy"),
    [
        (["--help", "list", "fly", "run quik"], HEAVY | ALSO_HEAVY),
        (["plan quick --set rouns=3", "run quick --set arms.dblp.high=1"], HEAVY),
    ],
)
def test_a_quick_answer_imports_nothing_heavy(commands, heavy, tmp_path):
    code = (
        "import contextlib, sys, testbed.__main__\n"
        "for command in sys.argv[1:]:\n"
        "    sys.argv[1:] = command.split()\n"
        "    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(sys.stderr):\n"
        "        testbed.__main__.main()\n"
        "    print(command, *sys.modules)"
    )
    done = python("-c", code, *commands, cwd=tmp_path, check=True)
    for command, line in zip(commands, done.stdout.splitlines(), strict=True):
        assert set(line.removeprefix(command).split()) & heavy == set(), command


def test_a_folder_whose_name_is_no_utf8_is_refused_in_one_line(in_process):
    status, out, first_line = in_process("report", "--out", os.fsdecode(b"r\xff"))
    assert (status, out) == (2, "")
    assert first_line == "lab: 'r\\udcff': no UTF-8; valid: names in UTF-8\n"


def test_a_simulation_says_first_what_it_will_do_and_plan_says_the_same(tmp_path, in_process):
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    words = (path, "--out", tmp_path / "out")
    _, planned, err = in_process("plan", *words, "--simulated", "--set", "seeds=[4]")
    assert "1 run to do; how long is unknown" in planned, err
    status, out, err = in_process("simulate", *words, "--set", "seeds=[4]")
    assert status == 0, err
    assert out.index("1 run to do") < out.index("[1/1] dblp, seed 4")
    (run,) = (path.parent for path in (tmp_path / "out").glob("small/*/config.json"))
    assert f"{run.name} " in planned


@pytest.mark.parametrize(
    "options",
    [
        ("quick", "--set", "rounds=52", "--set", "seeds=[7]", "--arms", "dblp,tcp-cubic"),
        ("burst-latency", "--profile", "paper"),  # labelled levels, which replace many keys
        ("hooks-conditions",),  # a default of programs, and levels that replace impairments
    ],
)
def test_the_resolved_yaml_of_an_experiment_has_the_same_runs(options, tmp_path, in_process):
    def keys(*words):
        status, out, err = in_process("plan", *words)
        assert status == 0, err
        return re.findall(r"^\S+-s\d+-[0-9a-f]{10}", out, re.MULTILINE)

    status, out, err = in_process("plan", *options, "--yaml")
    assert status == 0, err
    (path := tmp_path / "resolved.yaml").write_text(out)
    assert "run_timeout_s: " in out  # a default, too
    expected_keys = keys(path, "--out", tmp_path)
    assert expected_keys and expected_keys == keys(*options, "--out", tmp_path)


def test_all_steps_are_run_whatever_fails(monkeypatch, capfd):
    """`./lab test` names the steps that failed, and its status is right."""
    steps = {
        name: (maintenance.sys.executable, "-c", f"print({name!r}); raise SystemExit({status})")
        for name, status in (("first", 1), ("second", 0))
    }
    monkeypatch.setattr(maintenance, "_STEPS", steps)
    assert maintenance.test([]) == 1
    printed = capfd.readouterr()
    assert printed.out.splitlines()[1:] == ["== first", "first", "== second", "second"]
    assert printed.err == "lab: failed: first\n"
    steps.pop("first")
    assert maintenance.test([]) == 0


def test_no_control_character_of_a_result_reaches_the_terminal():
    screen = io.StringIO()
    terminal.say(Console(file=screen, width=80), "reason: \x1b]0;title\x07\x1b[2J, é")
    assert screen.getvalue() == "reason: ?]0;title??[2J, é\n"
