"""`kind: torchrun`: ranks as programs with torchrun's environment, arms, and lines for the rest."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, Literal, get_args

import pytest

from testbed.ddp import BoundedLoss, settings, steps
from testbed.experiment import json_schema
from testbed.run import requirements
from testbed.shared.input_error import InputError
from testbed.workload import torchrun
from testbed.workload.torchrun import TorchrunArm
from tests.workload import test_settings

WORKLOAD = {"kind": "torchrun", "script": "train.py", "args": "--epochs 2"}
# Of one rank a host; the lab's queues hold single packets.
OURS = {"port": 46999, "insecure": True, "segmentation": False}
SMALL = test_settings.SMALL | {"workload": WORKLOAD}


@pytest.fixture(autouse=True)
def _script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('trained')", encoding="utf-8")


def load(folder: Path, **changes: Any) -> list[Any]:
    return test_settings.load(folder, {**SMALL, **changes})


def programs(run: Any) -> list[dict[str, Any]]:
    return list(run.config()["workload"]["programs"])


def hook_settings(run: Any) -> dict[str, Any]:
    (text,) = {program["environment"]["BOUNDED_LOSS"] for program in programs(run)}
    return dict(json.loads(text))


def test_each_host_has_a_rank_with_torchruns_environment(tmp_path: Path) -> None:
    (run,) = load(tmp_path)
    assert run.arm == "torchrun"
    ranks = programs(run)
    assert [rank["host"] for rank in ranks] == ["server", "worker-1", "worker-2"]
    script = str(tmp_path / "train.py")
    assert {tuple(rank["run"]) for rank in ranks} == {("lab-python", "-u", script, "--epochs", "2")}
    for rank, environment in enumerate(program["environment"] for program in ranks):
        numbers = [int(environment[key]) for key in ("RANK", "LOCAL_RANK", "GROUP_RANK")]
        assert numbers == [rank, 0, rank]
        assert (environment["WORLD_SIZE"], environment["LOCAL_WORLD_SIZE"]) == ("3", "1")
        assert (environment["MASTER_ADDR"], environment["MASTER_PORT"]) == ("server", "29500")
    assert list(run.code) == [script]


def test_hosts_are_in_the_order_of_ranks(tmp_path: Path) -> None:
    (run,) = load(tmp_path, workload={**WORKLOAD, "hosts": ["worker-2", "server"]})
    ranks = programs(run)
    assert [rank["name"] for rank in ranks] == ["worker-2", "server"]
    assert {rank["environment"]["MASTER_ADDR"] for rank in ranks} == {"worker-2"}
    # A control port, and the first port of data is behind it.
    assert hook_settings(run)["port"] + 1 == run.config()["workload"]["data_ports"][0]
    assert run.experiment.working_hosts == ["worker-2", "server"]


def test_arms_swap_the_hook_and_its_settings(tmp_path: Path) -> None:
    arms: dict[str, dict[str, Any]] = {
        "as-it-is": {},
        "dblp": {"protocol": "dblp", "low": 0.01, "rate_bps": "48Mbit", "mode": "bounded"},
        "gloo": {"hook": "gloo", "congestion_control": "cubic", "args": []},
        "soon": {"hook": "gloo", "tcp_rto_min_s": "5ms"},
        "power": {"hook": "powerSGD", "rank": 4},
        "sgd-over-ours": {
            "hook": "powerSGD",
            "rank": 2,
            "backend": "bounded",
            "protocol": "none",
            "congestion_control": "bbr",
        },
    }
    plain, ours, gloo, power, over_ours, soon = load(tmp_path, arms=arms)
    assert hook_settings(plain) == OURS
    own = {"protocol": "dblp", "low": 0.01, "rate_bps": 48e6, "mode": "bounded"}
    assert hook_settings(ours) == {**OURS, **own}
    assert hook_settings(gloo) == {"hook": "gloo"}
    # The key of a run without it is the one from before there was this.
    timeouts = [run.config()["workload"].get("tcp_rto_min_s") for run in (gloo, soon)]
    assert timeouts == [None, 0.005] and "tcp_rto_min_s" not in gloo.config()["workload"]
    assert hook_settings(power) == {"hook": "powerSGD", "rank": 4}
    assert hook_settings(over_ours) == {**OURS, **arms["sgd-over-ours"]}
    assert programs(gloo)[0]["run"][3:] == []
    controls = [
        {program["congestion_control"] for program in programs(run)}
        for run in (ours, gloo, over_ours)
    ]
    assert controls == [{None}, {"cubic"}, {None}]
    assert not any("may_be_killed" in program for program in programs(ours))
    # A loss hits each arm's data and spares our control messages.
    for run in (ours, over_ours):
        assert run.config()["workload"]["data_ports"] == [47000, 47999]
    assert gloo.config()["workload"]["data_ports"] == [32768, 60999]


def test_a_fixed_rate_follows_the_slowest_link(tmp_path: Path) -> None:
    arms = {
        "dblp": {"protocol": "dblp"},
        "own": {"protocol": "dblp", "rate_bps": 1e6},
        "measured": {"protocol": "dblp", "congestion_control": "bbr"},
        "kernel": {"protocol": "tcp-reno"},
        "script": {},
        "gloo": {"hook": "gloo"},
        "fp16": {"hook": "fp16_compress", "backend": "bounded", "protocol": "dblp"},
    }
    topology = {"name": "star", "workers": 2, "rate_bps": "50Mbit"}
    runs = load(tmp_path, arms=arms, topology=topology)
    rates = {run.arm: hook_settings(run).get("rate_bps") for run in runs}
    assert rates == {
        **dict.fromkeys(arms),
        **dict.fromkeys(("dblp", "fp16"), 48_500_000),
        "own": 1e6,
    }
    topology["links"] = {"worker-2--s1": {"rate_bps": "20Mbit", "queue_bytes": 40_000}}
    (run,) = load(
        tmp_path,
        arms={"dblp": {"protocol": "dblp"}},
        topology=topology,
    )
    assert hook_settings(run)["rate_bps"] == 19_400_000
    assert hook_settings(run)["queue_bytes"] == 40_000


def test_an_arm_may_go_on_without_late_and_without_lost_ranks(tmp_path: Path) -> None:
    own = {"collective": "server", "late_share": 0.05, "min_ranks": 2}
    (run,) = load(tmp_path, arms={"patient": own})
    assert hook_settings(run) == {**OURS, **own}
    assert [program.get("may_be_killed", False) for program in programs(run)] == [False, True, True]


def test_a_changed_script_is_another_run_and_another_folder_the_same(tmp_path: Path) -> None:
    (before,) = load(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "train.py").write_text("print('trained')", encoding="utf-8")
    (same,) = load(elsewhere)
    (tmp_path / "train.py").write_text("pass", encoding="utf-8")
    (after,) = load(tmp_path)
    assert before.key == same.key != after.key


def test_the_names_are_those_of_the_hook() -> None:
    hooks = [torchrun.OURS, *torchrun.HOOKS]
    assert hooks == [settings.OURS, *settings.HOOKS]
    assert hooks == list(get_args(TorchrunArm.model_fields["hook"].annotation))
    assert set(torchrun._OF_OURS) <= {field.name for field in dataclasses.fields(BoundedLoss)}
    carried = [name for name, keys in torchrun.HOOKS.items() if "backend" in keys]
    assert carried == settings.CARRIED
    assert get_args(TorchrunArm.model_fields["backend"].annotation)[0] == Literal[settings.BACKEND]
    for name, keys in torchrun.HOOKS.items():
        assert [key for key in keys if key != "backend"] == list(settings.HOOKS[name][1])
    assert torchrun.HOOK_ENVIRONMENT == settings.ENVIRONMENT
    for key, valid in (
        ("mode", get_args(settings.Mode)),
        ("collective", get_args(settings.Collective)),
        ("filling", get_args(settings.FillingName)),
    ):
        (choice, _) = get_args(TorchrunArm.model_fields[key].annotation)
        assert get_args(choice) == tuple(valid)


LOSS = {"kind": "loss", "rounds": [3], "q": 0.5}


WRONG_WORKLOADS: dict[str, dict[str, Any]] = {
    "script: trian.py: no such file; looked in ...": {"script": "trian.py"},
    "script: this key is missing": {},
    "script: 'train'; valid: the path of a file that ends in .py": {"script": "train"},
    "args: ...no shell reads this, so '>' would be an argument; ...": {
        **WORKLOAD,
        "args": "--a > log",
    },
    "hosts.0: unknown host 'sever'; valid: ...; did you mean 'server'?": {
        **WORKLOAD,
        "hosts": ["sever"],
    },
    "datasets: 'fashion': valid: ...fashion-mnist...": {**WORKLOAD, "datasets": ["fashion"]},
    "hosts: ...'server' stands twice; valid: a rank on each host": {
        **WORKLOAD,
        "hosts": ["server", "server"],
    },
}
WRONG_ARMS: dict[str, dict[str, Any]] = {
    "hook: 'glo'; valid: ...; did you mean 'gloo'?": {"hook": "glo"},
    "protocol: hook 'gloo' has no such key; valid: ..., tcp_rto_min_s": {
        "hook": "gloo",
        "protocol": "dblp",
    },
    "tcp_rto_min_s: protocol 'dblp' has no such key; valid: ...": {
        "protocol": "dblp",
        "tcp_rto_min_s": "5ms",
    },
    "tcp_rto_min_s: 1e-06: must be ... from 0.001...": {"hook": "gloo", "tcp_rto_min_s": 1e-6},
    "backend: hook 'gloo' has no such key; valid: ...": {
        "hook": "gloo",
        "backend": "bounded",
    },
    "backend: unknown key without a protocol; valid: ...": {"backend": "bounded"},
    "backend: 'gloo'; valid: bounded": {"hook": "powerSGD", "backend": "gloo"},
    "protocol: missing, and backend needs it; valid: a preset, such as none": {
        "hook": "powerSGD",
        "backend": "bounded",
    },
    "mode: protocol 'none' has no such key; valid: ...": {
        "hook": "powerSGD",
        "backend": "bounded",
        "protocol": "none",
        "mode": "bounded",
    },
    "protocol: hook 'powerSGD' has no such key; valid: ..., backend": {
        "hook": "powerSGD",
        "protocol": "none",
    },
    "congestion_control: 'bbr:gain=2': valid: a name that the kernel knows": {
        "hook": "gloo",
        "congestion_control": "bbr:gain=2",
    },
    "protocol: unknown protocol 'dbpl'; valid: ...; did you mean 'dblp'?": {"protocol": "dbpl"},
    "lw: protocol 'dblp' has no such key; valid: ...low...": {"protocol": "dblp", "lw": 0.1},
    "...low...3...": {"protocol": "dblp", "low": 3},
    "late_share: 1.5: must be a number from 0 to 1": {"late_share": 1.5},
    "min_ranks: 4: valid: 1 to 3, the number of ranks": {"min_ranks": 4, "collective": "server"},
    "low: unknown key without a protocol; valid: ...protocol...": {"low": 0.1},
}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        *(
            ({"workload": {"kind": "torchrun", **keys}}, f"workload.{says}")
            for says, keys in WRONG_WORKLOADS.items()
        ),
        *(({"arms": {"a": arm}}, f"arms.a.{says}") for says, arm in WRONG_ARMS.items()),
        (
            {"training": {"model": "mlp"}},
            "training: belongs to ..., and workload.kind is 'torchrun'",
        ),
        (
            {"impairments": [LOSS], "arms": {"dblp": {}, "gloo": {"hook": "gloo"}}},
            "...impairments.0.leg: 'gather', but arms.gloo has the hook 'gloo', which has no...",
        ),
        (
            {"impairments": [{**LOSS, "rounds": [1, 5]}]},
            "...impairments.0.rounds: the first 2 rounds have no legs, ...",
        ),
    ],
)
def test_wrong_input_is_one_line(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    test_settings.assert_refused(tmp_path, {**SMALL, **changes}, says)


def test_legs_are_free_where_all_arms_have_them(tmp_path: Path) -> None:
    assert torchrun.FIRST_WITH_LEGS == steps.KNOWN_AFTER
    assert load(tmp_path, impairments=[{**LOSS, "rounds": [2]}])
    arms = {"dblp": {}, "gloo": {"hook": "gloo"}}
    assert load(tmp_path, arms=arms, impairments=[{**LOSS, "rounds": [0], "leg": "round"}])


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    runs = load(tmp_path, workload={**WORKLOAD, "python": "./env/bin/python"})
    with pytest.raises(InputError, match=r"workload\.python: './env/bin/python': no such file"):
        requirements.refuse(runs)


WRONG_TOGETHER: dict[str, dict[str, Any]] = {
    "protocol 'compressed' keeps 0.5 of the chunks and sends int4, with ...'rescale'; valid: ...": {
        "protocol": "compressed",
        "filling": "rescale",
    },
    "protocol 'dblp' sends int8, with mode 'reliable' ...": {
        "protocol": "dblp",
        "codec": "int8",
        "mode": "reliable",
    },
    "late_share is 0.5, mode 'bounded' and filling 'zero'; valid: 0, or ...": {
        "late_share": 0.5,
        "filling": "zero",
    },
    "backend with the protocol 'compressed', which keeps 0.5 of the chunks and ...; valid: ...": {
        "hook": "powerSGD",
        "backend": "bounded",
        "protocol": "compressed",
    },
    "protocol mlt: it bounds the loss of each layer, ...": {"protocol": "mlt"},
    "min_ranks is 2 and collective 'sharded'; valid: ...'server'...": {
        "min_ranks": 2,
        "collective": "sharded",
    },
}


@pytest.mark.parametrize(("says", "arm"), WRONG_TOGETHER.items())
def test_what_the_hook_would_refuse_is_refused_before_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, arm: dict[str, Any]
) -> None:
    monkeypatch.setenv("BOUNDED_LOSS", '{"mode": "local"}')  # the caller's is not the ranks'
    good = {"protocol": "compressed", "rate_bps": 1e7}
    other = {"none": {}, "gloo": {"hook": "gloo"}, "perhaps-by-a-server": {"min_ranks": 2}}
    requirements.refuse(load(tmp_path, arms={"good": good, **other}))
    with pytest.raises(InputError) as caught:
        requirements.refuse(load(tmp_path, arms={"good": good, "bad": arm}))
    line = str(caught.value).removeprefix(f"{tmp_path / 'mine.yaml'}: arms.bad: ")
    assert re.fullmatch(".*".join(map(re.escape, says.split("..."))), line), line


def test_the_schema_for_editors_knows_arms_of_torchrun() -> None:
    import jsonschema

    validator = jsonschema.Draft202012Validator(json_schema.build())
    good = {**SMALL, "arms": {"a": {"protocol": "dblp", "low": 0.1}, "b": {"hook": "gloo"}}}
    assert validator.is_valid(good)
    for wrong in ({"hook": "glo"}, {"lw": 1}, {"mode": "lossy"}, {"rank": 0}):
        assert not validator.is_valid({**SMALL, "arms": {"a": wrong}}), wrong
