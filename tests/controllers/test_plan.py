"""The timeline in YAML: what it resolves to, and what is said when it is wrong."""

from pathlib import Path

import pytest
import yaml

from testbed import experiment
from testbed.shared.yaml_input import InputError

LOSS = {"kind": "loss", "q": 0.5}


def load(folder: Path, *entries: dict[str, object], rounds: int = 20, **changes: object):
    document = {
        "name": "planned",
        "rounds": rounds,
        "seeds": [1, 2],
        "topology": {"name": "dumbbell", "workers": 2},
        "arms": {"a": {"protocol": "dblp"}, "b": {"protocol": "tcp-reno"}},
        "impairments": list(entries),
        **changes,
    }
    path = folder / "planned.yaml"
    path.write_text(yaml.safe_dump(document))
    return experiment.load(str(path))


def resolved(folder: Path, entry: dict[str, object]) -> list[dict[str, object]]:
    """The entry as the configurations of all four runs have it: seed 1, a, b; seed 2, a, b."""
    return [run.config()["impairments"][0] for run in load(folder, entry)]


def test_a_period_becomes_a_list(tmp_path):
    entry = {**LOSS, "rounds": {"every": 4, "from": 3, "until": 15}}
    assert [entry["rounds"] for entry in resolved(tmp_path, entry)] == [[3, 7, 11, 15]] * 4
    entry = {**LOSS, "rounds": {"every": 8}}
    assert resolved(tmp_path, entry)[0]["rounds"] == [0, 8, 16]
    entry = {**LOSS, "at_s": {"every": 0.5, "from": 1, "until": 2}, "duration_s": 0.25}
    assert resolved(tmp_path, entry)[0]["at_s"] == [1.0, 1.5, 2.0]


def test_random_rounds_follow_from_the_seed_and_are_the_same_for_all_arms(tmp_path):
    entry = {**LOSS, "rounds": {"random": 4, "from": 1, "until": 15}}
    runs = load(tmp_path, entry, seeds=list(range(25)))
    drawn = {(run.seed, tuple(run.config()["impairments"][0]["rounds"])) for run in runs}
    assert len({run.arm for run in runs}) == 2
    assert len(drawn) == 25
    assert len({rounds for _, rounds in drawn}) > 20
    for _, rounds in drawn:
        assert len(set(rounds)) == 4
        assert set(rounds) <= set(range(1, 16))


IN_ROUND = "kind: loss, q: 0.5, rounds: [1]"
AT = "kind: loss, q: 0.5, duration_s: 1, at_s"
LATE = "kind: delay, delay_s: 0.01, rounds: [1]"


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ("kind: loss, q: 0.5, rounds: {random: 21}", "rounds.random: 21: there are only 20 rounds"),
        ("kind: loss, q: 0.5, rounds: {every: 2, from: 9, until: 8}", "no round from 9 until 8"),
        (f"{AT}: [0, 1]", "at_s: 0 and 1 overlap, or nearly: it lasts 1 s; valid: 1.01 s apart"),
        (f"{AT}: {{every: 1, until: 9}}", "at_s.every: 1: it lasts 1 s; valid: 1.01 s apart or m"),
        (f"{AT}: {{random: 9, until: 3}}", "at_s: must be a list of seconds, or {every: ..., fr"),
        (f"{AT}: [1], leg: round", "leg: belongs to rounds"),
        (f"{IN_ROUND}, link: [server, s1], host: server", "host and link exclude each other"),
        (f"{IN_ROUND}, p_good_to_bad: 0.1", "p_good_to_bad: excludes q"),
        ("kind: delay, rounds: [1]", "changes nothing; give delay_s, jitter_s or both"),
        (f"{LATE}, jitter_s: 0.02", "jitter_s: 0.02; valid: up to 0.01, the delay_s"),
        (
            f"{LATE}}}, {{kind: trace, rounds: [1], length_s: 1, changes: {{t_s: [0], "
            "delay_s: [0.1], loss: [0.5]}",
            "both set delay_s at server in the gather of round 1",
        ),
        (
            f"{IN_ROUND}}}, {{{IN_ROUND}, name: again",
            "impairments.1 (again): contradicts impairments.0 (loss-server): both are loss at "
            "server in the gather of round 1",
        ),
        (f"{AT}: [1]}}, {{{AT}: [1.5], name: again", "both are loss at server at 1.5 s"),
        (
            "kind: queue, host: worker-1, rounds: [1], rate_bps: 5000000}, {kind: straggler, "
            "host: worker-1, resource: link, factor: 4, rounds: [1]",
            "both set a rate at worker-1 in round 1",
        ),
        (f"{IN_ROUND}}}, {{{IN_ROUND}", "impairments.1.name: 'loss-server' is taken by"),
        (
            "kind: burst, rounds: [1], link: [worker-1, left]",
            "acts where a switch sends; worker-1 is a host",
        ),
    ],
)
def test_bad_input_is_one_line_that_says_what_is_valid(tmp_path, entries, expected):
    with pytest.raises(InputError) as caught:
        load(tmp_path, *yaml.safe_load(f"[{{{entries}}}]"))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_link_s_own_jitter_leaves_no_room_for_is_refused(tmp_path):
    jittery = {"name": "star", "workers": 2, "delay_s": 0.02, "jitter_s": 0.005}
    for entry in (
        {"kind": "delay", "delay_s": 0.001},
        {"kind": "trace", "changes": {"t_s": [0, 1], "delay_s": [0.01, 0.001]}, "length_s": 2},
    ):
        with pytest.raises(InputError, match=r"delay_s: 0\.001; valid: from 0\.005, the jitter_s"):
            load(tmp_path, {**entry, "rounds": [1]}, topology=jittery)
    assert load(tmp_path, {"kind": "delay", "jitter_s": 0.0, "rounds": [1]}, topology=jittery)


def test_a_host_and_its_link_are_one_target(tmp_path):
    one = {**LOSS, "rounds": [1], "host": "server"}
    with pytest.raises(InputError, match=r"contradicts impairments\.0"):
        load(tmp_path, one, {**LOSS, "rounds": [1], "link": ["right", "server"]})
    assert load(tmp_path, one, {**LOSS, "rounds": [1], "link": ["server", "right"]})
