"""A plan knows what a run needs of the kernel."""

import io
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from testbed import experiment
from testbed.cli import plan
from testbed.run import requirements
from testbed.shared.input_error import InputError
from testbed.transport import presets
from tests.experiment.small import BASE, write

TCP = {"protocol": presets.preset("tcp-warp").describe(), "transport": {}}


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(requirements, "available_congestion_controls", lambda: ["reno", "cubic"])


def test_a_congestion_control_that_the_kernel_lacks_is_named(kernel, monkeypatch):
    for name in ("tcp-cubic", "dblp"):  # it has the one, and does not need the other
        protocol = presets.preset(name).describe()
        assert requirements.lacking({**TCP, "protocol": protocol}, [], []) is None
    assert requirements.lacking(TCP, [], []) == (
        "this kernel has no TCP congestion control 'warp'; it has reno, cubic; "
        "'modprobe tcp_warp' as root may add it"
    )
    # One that does not say what it has is tried.
    monkeypatch.setattr(requirements, "available_congestion_controls", list)
    assert requirements.lacking(TCP, [], []) is None
    monkeypatch.setattr(requirements, "LEAST_TIMEOUT", Path("/nowhere"))
    assert requirements.lacking(TCP, [], []) is None
    of_programs = {"workload": {"programs": [], "tcp_rto_min_s": 0.005}}
    for least in ({**TCP, "transport": {"tcp_rto_min_s": 0.005}}, of_programs):
        assert "needs Linux 6.11" in str(requirements.lacking(least, [], []))


def test_runs_that_are_unsupported_here_are_not_to_do(tmp_path):
    drop = {"kind": "sender-drop", "host": "worker-1", "leg": "gather", "rounds": [3], "q": 0.5}
    runs = experiment.load(write(tmp_path, impairments=[drop], seeds=[1]))

    def shown(view, runs):
        screen = io.StringIO()
        view(tmp_path, runs, Console(file=screen, width=200))
        return screen.getvalue()

    def lines_of(text, arm):
        return [line.split() for line in text.splitlines() if f" {arm} " in line]

    listed = shown(plan.show_runs, runs)
    (dblp,), (tcp,) = (lines_of(listed, arm) for arm in ("dblp", "tcp-reno"))
    assert dblp[-2:] == ["to", "do"] and tcp[-2:] == ["unsupported", "here"]
    assert "unsupported here: tcp-reno: sender-drop: the kernel sends the packets of TCP" in listed
    assert "1 run to do, about " in shown(plan.show_time, runs)
    others = [run for run in runs if run.arm != "dblp"]
    assert not shown(plan.show_time, others)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("timely", "'timely' is of the lab's transport; valid with tcp: reno, cubic"),
        ("qubic", "unknown TCP congestion control 'qubic'; this kernel has reno, cubic; did you m"),
        ("cubic", ""),
        ("westwood", ""),  # of Linux: unsupported here
        ("bbr2", ""),
        ("nonesuch", ""),
    ],
)
def test_a_control_that_no_kernel_has_is_wrong_input(kernel, name: str, says: str):
    runs = experiment.load("quick", congestion_control=name, arms=["tcp-cubic"], seeds=1)
    if not says:
        requirements.refuse(runs)
        return
    with pytest.raises(InputError) as caught:
        requirements.refuse(runs)
    key = f"arms.tcp-cubic@congestion_control={name}.congestion_control"
    assert f"quick.yaml: {key}: {says}" in str(caught.value)


def test_a_wrong_control_of_a_program_is_named_where_it_stands(kernel, tmp_path):
    program = {"host": "server", "run": "sleep 1", "congestion_control": "renno"}
    document = {
        **{key: BASE[key] for key in ("name", "seeds", "topology")},
        "workload": {"kind": "programs", "programs": [program]},
        "arms": {
            "a": {},
            "b": {"congestion_control": "ltp"},
            "c": {"server": {"congestion_control": "cubik"}},
        },
    }
    path = tmp_path / "small.yaml"
    for arm, key, control in (
        ("a", "workload.programs.0", "renno"),
        ("b", "arms.b", "ltp"),
        ("c", "arms.c.server", "cubik"),
    ):
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        with pytest.raises(InputError, match=f": {key}.congestion_control: .*'{control}'"):
            requirements.refuse(experiment.load(str(path)))
        document["arms"].pop(arm)
