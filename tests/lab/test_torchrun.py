"""Scripts under torchrun in a lab, whose steps are rounds: the example, and one of data sets."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars
import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.utils import rdpcap

from tests.lab.conftest import SMALL

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host"), pytest.mark.timeout(300)]

SCRIPT = Path(__file__).resolve().parents[2] / "examples/ddp_train.py"
TASK = SCRIPT.parents[1] / "experiments/programs/ddp_task.py"
ROUNDS = 8
# Parameters of the example's model of that width, and of the task's, in bytes.
GRADIENT_BYTES = 4 * (8 * 10 + 16 * (8 * 9 + 1) + 128 * (256 + 1) + 10 * (128 + 1))
TASK_BYTES = 4 * 50_311


def experiment(leg: str, script: Path = SCRIPT, words: str = "", **arms: Any) -> dict[str, Any]:
    """The script on two hosts, with a loss in two of the rounds."""
    words = words or f"--epochs 1 --images {ROUNDS * 32 * 2} --width 8"
    loss = {"name": "a loss", "kind": "loss", "host": "server", "leg": leg, "q": 0.3}
    return {
        "rounds": ROUNDS,
        "topology": {**SMALL["topology"], "workers": 1},
        "workload": {"kind": "torchrun", "script": str(script), "args": words},
        "impairments": [{**loss, "rounds": [3, 5], "duration_s": 0.05}],
        "arms": arms,
    }


@pytest.fixture(autouse=True)
def _no_training(monkeypatch):
    for key in ("training", "transport"):
        monkeypatch.delitem(SMALL, key)


@pytest.fixture
def trained(run_small):
    return lambda leg, capture=(), **more: run_small(capture=capture, **experiment(leg, **more))


@pytest.mark.parametrize(
    ("leg", "arm"),
    [
        pytest.param("round", {"hook": "gloo"}, marks=pytest.mark.long),
        ("gather", {"protocol": "dblp"}),
    ],
)
def test_a_data_set_of_the_lab_is_trained_and_rounds_are_hit(trained, leg, arm):
    if arm.get("protocol"):
        arm = {**arm, "rate_bps": 0.9 * SMALL["topology"]["rate_bps"]}
    words = f"--dataset digits --steps {ROUNDS} --every 4 --batch 64"
    results = trained(leg, mine=arm, script=TASK, words=words)
    results.assert_trained()
    folder = results.run("mine")
    rounds = results.events("rounds", "mine")
    assert [row["round"] for row in rounds] == list(range(ROUNDS))
    # Where rounds are short, one lasts into the next.
    hit = [row["round"] for row in rounds if row["impairments"]]
    assert {3, 5} <= set(hit) <= {3, 4, 5, 6, 7}
    with_legs = [row["round"] for row in rounds if {"gather_s", "broadcast_s"} <= row.keys()]
    assert with_legs == ([] if leg == "round" else list(range(2, ROUNDS)))
    stored = json.loads((folder / "workload.json").read_text())
    assert stored["markers"]["refused"] == 0
    assert [program["exit_status"] for program in stored["programs"]] == [0, 0]
    assert f"after {ROUNDS} steps, " in (folder / "logs" / "server.log").read_text()
    losses = results.events("training-server-evaluations", "mine")
    assert [line["round"] for line in losses] == [3, 7]
    assert 0 < losses[0]["elapsed_s"] < losses[1]["elapsed_s"]
    assert all(1 < line["perplexity"] < 20 for line in losses)
    ends = [event for event in results.events("impairments", "mine") if event["action"] == "end"]
    assert all(end["met"] > 10 and end["dropped"] > 0 for end in ends)
    # Half of each gradient is averaged here, and half of each mean comes from the other rank.
    assert sent_to(folder, "server") > 0.8 * ROUNDS * TASK_BYTES
    for host in ("server", "worker-1"):
        waits = results.events(f"training-{host}", "mine")
        assert [wait["round"] for wait in waits] == list(range(ROUNDS))
        transfers = results.events(f"transfers-{host}", "mine")
        steps = {transfer["round"] for transfer in transfers}
        assert steps == (set() if leg == "round" else set(range(2, ROUNDS)))


def test_the_example_trains_and_a_hook_of_pytorch_sends_datagrams_in_both_channels(trained):
    arm = {"hook": "powerSGD", "rank": 2, "from_step": 2, "backend": "bounded"}
    arm |= {"protocol": "none", "congestion_control": "bbr"}
    results = trained("round", mine=arm, capture=["server"])
    results.assert_trained()
    assert "epoch 0: accuracy 0." in (results.run("mine") / "logs/server.log").read_text()
    assert [row["round"] for row in results.events("rounds", "mine")] == list(range(ROUNDS))
    ends = [event for event in results.events("impairments", "mine") if event["action"] == "end"]
    assert all(end["met"] > 0 for end in ends) and sum(end["dropped"] for end in ends) > 0
    sent_bytes: Counter[int] = Counter()  # by the lower port; 0 is all of TCP
    for packet in rdpcap(str(results.run("mine") / "pcap" / "server.pcap")):
        if UDP in packet:
            ports = {packet[UDP].sport, packet[UDP].dport}
            sent_bytes[next(iter(ports & {47000, 47001}), -1)] += packet[UDP].len
        elif TCP in packet:
            sent_bytes[0] += packet[IP].len
    # Half of all is averaged at each end, so all goes there and back. Whole gradients and rank-one
    # tensors are in the first channel; the callbacks have the second one, for both factors.
    factors = 2 * 4 * ((8 + 9) + (16 + 72) + (128 + 256) + (10 + 128))
    assert sent_bytes[47000] > 2 * 2 * GRADIENT_BYTES
    assert sent_bytes[47001] > (ROUNDS - 2) * 2 * factors
    # Gloo has what DistributedDataParallel shares when it begins: the weights, once.
    assert sent_bytes[0] < 2 * GRADIENT_BYTES


def sent_to(folder: Path, host: str) -> float:
    samples = polars.read_parquet(folder / "samples" / "queues.parquet")
    inwards = samples.filter(polars.col("from") != host)
    own = inwards.filter(polars.col("link").str.contains(host, literal=True))
    counts = own["sent_bytes"].to_numpy()
    return float(counts.max() - counts.min())
