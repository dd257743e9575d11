"""Every verdict and every gate is explained, in the terminal and in the documentation."""

import io
import os
import re
from dataclasses import replace

import pytest
from rich.console import Console

from testbed.cli import places, verbs
from testbed.documentation import reference
from testbed.shared import run_directory
from testbed.shared.input_error import InputError
from testbed.verdict.explanation import MEANINGS, explain
from testbed.verdict.gates import BY_KEY
from tests.verdict.evidence_of_gates import judged, queue


def ended(folder, verdict, reason="", gates=(), name="dblp-s1-0123456789", logs=None):
    directory = folder / "small" / name
    (directory / "logs").mkdir(parents=True)
    for log, text in (logs or {}).items():
        (directory / "logs" / f"{log}.log").write_text(text)
    records = [gate.as_json() for gate in gates]
    run_directory.write_status(directory, verdict, reason, gates=records)
    return directory


def shown(directory, width=80):
    screen = io.StringIO()
    verbs.show_explanation(directory, Console(file=screen, width=width))
    return screen.getvalue()


def test_the_evidence_is_in_the_dictionary_of_files():
    documents = reference.sections()
    keys_of = dict(documents["documents"])
    for folder in ("events", "samples"):
        keys_of |= {f"{folder}/{name}": keys for name, keys in documents[folder].items()}
    for key, about in BY_KEY.items():
        for file, keys in re.findall(r"([\w/.]+\.jsonl?): ([^;]+)", about.evidence):
            for pattern in re.findall(r"[\w.\[\]*]*[._\[][\w.\[\]*]*", keys):
                assert any(one.startswith(pattern) for one in keys_of[file]), (key, file, pattern)


def test_every_verdict_has_a_meaning():
    assert set(MEANINGS) == set(run_directory.VERDICTS)


@pytest.mark.parametrize("key", sorted(set(BY_KEY) - {"rtt_error", "rtt_error_s", "delay_error"}))
def test_a_gate_that_failed_is_shown_with_value_limit_evidence_cause_and_remedy(tmp_path, key):
    (gate,) = [gate for gate in judged() if gate.key == key]
    broken = replace(gate, value=7.5, outcome="failed", where="rustc 0.31")
    text = shown(ended(tmp_path, "invalid", broken.sentence(), [broken]))
    about = BY_KEY[key]
    assert broken.sentence().startswith(f"{key}: {broken.name} 7.5")
    assert f"gate {key} failed" in text
    assert f"7.5; limit {broken.limit:g}" in text
    whole = f"./lab run {tmp_path / 'small'}"
    remedy = about.remedy.replace("./lab run", whole)
    for words in ("rustc 0.31", about.causes, remedy, about.evidence, about.measured):
        assert words in text
    assert text.count("./lab run") == text.count(whole)


def test_gates_that_decide_come_first_and_waived_ones_are_without_advice(tmp_path):
    queues = [queue(peak_bytes=None, reason="too deep")]
    gates = judged(queues=queues, switch_holds_bytes=1, limits={"waive": ["queue_error"]})
    text = shown(ended(tmp_path, "invalid", "socket buffer", gates))
    decides, waived, others = (
        text.index(words)
        for words in (
            "gate socket_buffer_bytes failed: ",
            "gate queue_error not measured, but waived, so it does not decide: ",
            "other gates",
        )
    )
    assert decides < waived < others
    assert "what to do: " in text[decides:waived]
    assert "what to do: " not in text[waived:others]
    assert "queue_error, by limits.waive" in text[waived:others]


@pytest.mark.parametrize(
    ("reason", "log", "cause"),
    [
        ("server: /x/mine.py: line 8: RuntimeError: my bug", "server", "that line rais"),
        ("worker-1: lost server: silent for 5 s", "worker-1", "heard nothing for"),
        ("worker-1: killed by SIGKILL", "worker-1", "memory ran out"),
        (
            "not finished after 60 s (limits.run_timeout_s)",
            "supervisor",
            "longer than limits.run_timeout_s",
        ),
        ("something new", "supervisor", "what is known"),
    ],
)
def test_a_failure_shows_its_usual_cause_and_the_end_of_the_log(tmp_path, reason, log, cause):
    logs = {"server": "begin\nserver's end\n", "worker-1": "w\n", "supervisor": "s\n"}
    directory = ended(tmp_path, "failed", reason, logs=logs)
    explained = explain(directory)
    assert cause in explained.causes
    assert explained.remedy
    assert explained.log == f"logs/{log}.log"
    assert shown(directory).rstrip().endswith(explained.log_end[-1])


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("server: ended with status 1; logs/server.log ends: no disk", "program itself failed"),
        ("server: killed by SIGKILL by impairment cut (kind crash); ", "An impairment of this exp"),
        (
            "server: not finished after 0.5 s (time_limit_s); logs/server.log is empty",
            "took longer",
        ),
        ("server: not finished after 60 s (limits.run_timeout_s)", "longer than limits.run_timeo"),
        ("ovs-vswitchd: ended with status 1; logs/supervisor.log ends: ", "what is known"),
    ],
)
def test_a_failure_of_programs_is_no_failure_of_the_training(tmp_path, reason, cause):
    directory = ended(tmp_path, "failed", reason, logs={"server": "end\n", "supervisor": "s\n"})
    programs = [{"name": "server"}, {"name": "b"}]
    run_directory.write_json(directory / "config.json", {"workload": {"programs": programs}})
    explanation = explain(directory)
    assert cause in explanation.causes
    assert ("report it" in explanation.remedy) == reason.startswith("ovs")
    assert "train" not in explanation.causes + explanation.remedy


def test_an_unsupported_and_an_interrupted_run_say_what_to_do(tmp_path):
    assert "./lab check" in shown(ended(tmp_path, "unsupported", "no TCP congestion control 'x'"))
    interrupted = ended(tmp_path, "interrupted", "by the user", name="dblp-s2-0000000000")
    assert f"./lab run {tmp_path / 'small'}" in shown(interrupted)


@pytest.mark.parametrize(
    ("reason", "simulated"),
    [("the disk is full", False), ("odd", False), ("the disk is full", True)],
)
def test_the_command_that_tries_again_names_its_folder_once(tmp_path, reason, simulated):
    directory = ended(tmp_path, "failed", reason)
    run_directory.write_json(directory / "config.json", {"simulated": simulated})
    folder = str(tmp_path / "small")
    remedy = explain(directory).remedy
    assert f"./lab {'simulate' if simulated else 'run'} {folder}" in remedy
    assert remedy.count(folder) == 1


def test_a_run_is_found_by_its_folder_its_key_and_the_beginning_of_its_key(tmp_path):
    first = ended(tmp_path, "ok")
    earlier = ended(tmp_path, "invalid", name="dblp-s1-0123456789.attempt1")
    second = ended(tmp_path, "ok", name="dblp-s2-0000000000")
    for name in (str(first), "dblp-s1-0123456789", "dblp-s1", "small/dblp-s1-0123456789"):
        assert places.run(name, tmp_path) == first
    assert places.run(earlier.name, tmp_path) == earlier
    assert places.run(None, tmp_path) == second
    (tmp_path / "small.yaml").write_text("name: small\n")
    (tmp_path / "small" / "plan.json").write_text("{}")
    folders = [str(tmp_path / "small"), str(tmp_path)]
    for name in ("small", str(tmp_path / "small.yaml"), *folders):
        assert places.run(name, tmp_path) == second
    wrong = ended(tmp_path, "invalid", name="reno-s1-1111111111")
    os.utime(wrong / "status.json", (0, 0))
    assert places.run(None, tmp_path) == second
    assert places.run("small", tmp_path) == wrong
    assert places.run(str(tmp_path / "small"), tmp_path / "x") == wrong
    (tmp_path / "new").mkdir()
    with pytest.raises(InputError, match="new: holds no run that has ended"):
        places.run("new", tmp_path)
    with pytest.raises(InputError, match=r"dblp: several runs in .* begin so: small/dblp-s1-0123"):
        places.run("dblp", tmp_path)
    with pytest.raises(InputError, match=r"tcp: no run of this name in .*; valid: small/dblp-s1-"):
        places.run("tcp", tmp_path)
    with pytest.raises(InputError, match=r"no run; .* holds none that has ended"):
        places.run(None, tmp_path / "nothing")


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [("interrupted", ""), ("failed", "the disk is full"), ("failed", "odd"), ("invalid", "gates")],
)
def test_a_run_of_a_script_is_not_to_be_resumed(tmp_path, verdict, reason):
    gates = [gate for gate in judged() if gate.key == "cpu_others"] if verdict == "invalid" else []
    directory = ended(tmp_path, verdict, reason, gates)
    run_directory.write_json(directory / "config.json", {"adjustable": False})
    explanation = explain(directory)
    advice = explanation.remedy + "".join(
        gate.about.remedy for gate in [*explanation.gates, *explanation.others]
    )
    assert "ry again (the same script)" in advice
    assert "./lab run" not in shown(directory)
