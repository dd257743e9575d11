"""Builds small results folders with numbers whose statistics are known by hand."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from analysis.data.load import load
from analysis.summary.document import summarise
from analysis.tables.rendering import Table

EXPERIMENT = "quick"
BURST_ROUNDS = (4, 8)


class ResultsBuilder:
    """Writes run directories below `folder`, and the plan that names them."""

    def __init__(
        self, folder: Path, *, experiment: str = EXPERIMENT, arms: Sequence[str] = ()
    ) -> None:
        self.results_dir = folder
        self.folder = folder / experiment
        self.experiment = experiment
        self.arms = list(arms)
        # The experiment's keys, if it has them.
        self.published: list[str] | None = None
        self.factors: dict[str, Any] | None = None
        self.compare: list[list[str]] = []
        self._planned: list[dict[str, Any]] = []
        self.folder.mkdir(parents=True)

    def plan(self, key: str, *, arm: str, seed: int, factors: dict[str, Any] | None = None) -> None:
        self._planned.append({"key": key, "arm": arm, "seed": seed, "factors": factors or {}})
        document = {
            "schema": 1,
            "experiment": self.experiment,
            "command": f"./lab run {self.experiment}",
            "runs": self._planned,
        }
        write(self.folder / "plan.json", document)
        arms = self.arms or list(dict.fromkeys(run["arm"] for run in self._planned))
        write(
            self.folder / "experiment.json",
            {"schema": 1, "name": self.experiment, "description": "A test", "arms": arms}
            | ({} if self.published is None else {"published": self.published})
            | ({} if self.factors is None else {"factors": self.factors})
            | {"compare": self.compare},
        )

    def run(
        self,
        *,
        arm: str,
        seed: int,
        calm_s: float = 0.1,
        burst_s: float = 1.0,
        compute_s: float = 0.05,
        rounds: int = 10,
        accuracy: float = 0.9,
        passes: int | None = 2,
        received: int | None = 90,
        verdict: str = "ok",
        reason: str = "",
        factors: dict[str, Any] | None = None,
        suffix: str = "",
        planned: bool = True,
        key: str | None = None,
        workers: int = 1,
        layers: int = 0,
        metric: str = "accuracy",
        pace: dict[str, Any] | None = None,
        target: float | None = None,
        config: dict[str, Any] | None = None,
        critical: int = 1,
        machine: str = "Test CPU",
        congestion_control: str | None = None,
    ) -> Path:
        """One run: rounds of `calm_s`, but `burst_s` in rounds 4 (loss) and 8 (burst).

        With `layers`, the effects of loss are measured: the replicas drift apart by 0.001 per
        round. `config` replaces keys of the configuration. The first `critical` rounds are so.
        """
        point = "".join(f"-{value}" for value in (factors or {}).values())
        key = key or f"{arm}-s{seed}{point}"
        if planned:
            self.plan(key, arm=arm, seed=seed, factors=factors)
        directory = self.folder / (key + suffix)
        (directory / "events").mkdir(parents=True)
        document = _config(key, arm, seed, rounds, factors or {})
        document["training"] |= {
            "pace": pace or {"kind": "real"},
            "target": target,
            "measure_every": 1 if layers else 0,
        }
        write(directory / "config.json", document | (config or {}))
        manifest = {"schema": 1, "kernel": "6.1.0-test", "cpu": {"model": machine, "count": 2}}
        manifest |= {"versions": {"torch": "2.13.0", "numpy": "2.4.6"}, "seed": seed}
        write(directory / "manifest.json", manifest)
        link: dict[str, Any] = {"from": "worker-1", "to": "server"}
        link |= {"configured_rate_bps": 1e8, "rate_bps": 9.9e7, "rtt_s": 0.001}
        write(directory / "calibration.json", {"schema": 1, "links": [link]})
        write(directory / "status.json", _status(verdict, reason, seed))
        latencies = [burst_s if number in BURST_ROUNDS else calm_s for number in range(rounds)]
        learnt = None if pace and pace["kind"] == "payload-only" else (metric, accuracy)
        hosts = [f"worker-{number}" for number in range(1, workers + 1)]
        if congestion_control is not None:
            for host, peer in (("server", "worker-1"), ("worker-1", "server")):
                facts = {peer: {"congestion_control": congestion_control}}
                endpoint = {"host": host, "facts": facts, "ignored": {}}
                write_lines(directory / "events" / f"endpoint-{host}.jsonl", [endpoint])
        events = directory / "events"
        write_lines(events / "rounds.jsonl", _rounds(latencies, compute_s, critical))
        for host, others in (("server", hosts), *((name, ["server"]) for name in hosts)):
            transfers = [
                _transfer(number, host, other, role, passes, received)
                for number in range(rounds)
                for other in others
                for role in ("sender", "receiver")
            ]
            write_lines(events / f"transfers-{host}.jsonl", transfers)
        for host, above in (("worker-1", 0.01), ("worker-2", -0.01)):
            lines = _training(latencies, compute_s, learnt, host, above)
            write_lines(events / f"training-{host}.jsonl", lines)
        write_lines(events / "impairments.jsonl", [*_impairment(4, 50), *_impairment(8, 7)])
        if layers:
            gathered = {"relative_error": 0.1, "cosine": 0.99, "norm_ratio": 0.9}
            of_host = {"relative_error": 0.2, "cosine": 0.97, "norm_ratio": 0.8}
            applied = dict.fromkeys(hosts, of_host)
            effects = [
                {"round": n, "gathered": gathered, "applied": applied, "divergence": 0.001 * n}
                for n in range(rounds)
            ]
            write_lines(directory / "events" / "effects.jsonl", effects)
        return directory


def write(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document), encoding="utf-8")


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    """A JSON-lines file; every record gets the schema's version."""
    lines = [json.dumps({"schema": 1, **record}) + "\n" for record in records]
    path.write_text("".join(lines), encoding="utf-8")


@contextlib.contextmanager
def edited(path: Path) -> Iterator[Any]:
    """The document of a JSON file, or the records of a JSON-lines file, to be changed in place."""
    if path.suffix == ".json":
        document = json.loads(path.read_text(encoding="utf-8"))
        yield document
        write(path, document)
    else:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        yield records
        write_lines(path, records)


def summary_of(folder: Path) -> dict[str, Any]:
    return summarise(load(folder))


def texts_of(table: Table) -> dict[str, list[str]]:
    return {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}


def _rounds(latencies: list[float], compute_s: float, critical: int) -> list[dict[str, Any]]:
    labels = {4: ["loss-server"], 8: ["background"]}
    return [
        {
            "round": number,
            "critical": number < critical,
            "gradient_norm": 1.0,
            "tolerance_gather": 0.1,
            "tolerance_broadcast": 0.1,
            "compute_s": compute_s,
            "gather_s": latency * 0.75,
            "broadcast_s": latency * 0.25,
            "latency_s": latency,
            "iteration_s": latency + compute_s,
            "impairments": labels.get(number, []),
        }
        for number, latency in enumerate(latencies)
    ]


def _training(
    latencies: list[float],
    compute_s: float,
    learnt: tuple[str, float] | None,
    host: str,
    above: float,
) -> list[dict[str, Any]]:
    """A worker's lines; every third and the last have the metric, which rises to its end."""
    elapsed_s, lines = 0.0, []
    for number, latency in enumerate(latencies):
        elapsed_s += latency + compute_s
        line: dict[str, Any] = {
            "round": number,
            "host": host,
            "loss": 2.0,
            "compute_s": compute_s,
            "compute_overrun_s": 0.01 if number == 0 else 0.0,
            "elapsed_s": elapsed_s,
        }
        if learnt is not None:
            (metric, final), last = learnt, number == len(latencies) - 1
            value = final if last else final * (number + 1) / len(latencies)
            line[metric] = value + above if last or number % 3 == 0 else None
        lines.append(line)
    return lines


def _transfer(
    number: int, host: str, peer: str, role: str, passes: int | None, received: int | None
) -> dict[str, Any]:
    """100 chunks each: gather delivers `received` of them, broadcast five more."""
    gather, sender = (host == "server") == (role == "receiver"), role == "sender"
    arrived = None if received is None else received + (0 if gather else 5)
    if sender and arrived is not None:
        arrived = 1  # what a sender believes must not count
    return {
        "round": number,
        "leg": "gather" if gather else "broadcast",
        "role": role,
        "host": host,
        "peer": peer,
        "chunk_count": 100,
        "chunks_received": arrived,
        "passes": passes if sender else None,
        "bytes_sent": 1000 if sender else 0,
        "began_s": 0.0,
        "ended_s": 1.0,
        "ignored": {"stale": number},
    }


def _impairment(number: int, dropped: int) -> list[dict[str, Any]]:
    name, kind = ("loss-server", "loss") if number == 4 else ("background", "burst")
    begin = {
        "name": name,
        "kind": kind,
        "host": "server",
        "action": "begin",
        "round": number,
        "leg": "gather",
        "planned_s": 100.0,
        "sent_s": 100.001,
        "acknowledged_s": 100.003,
        "dropped": None,
        "frames_sent": None,
    }
    sent = 400 if kind == "burst" else None
    return [begin, {**begin, "action": "end", "dropped": dropped, "frames_sent": sent}]


def _config(key: str, arm: str, seed: int, rounds: int, factors: dict[str, Any]) -> dict[str, Any]:
    common = {"host": "server", "leg": "gather"}
    return {
        "schema": 1,
        "experiment": EXPERIMENT,
        "key": key,
        "arm": arm,
        "seed": seed,
        "factors": factors,
        "rounds": rounds,
        "topology": {"name": "star", "workers": 2, "rate_bps": 100_000_000, "queue_bytes": 150_000},
        "training": {"model": "small-cnn", "dataset": "digits"},
        "transport": {"chunk_bytes": 1456},
        "phases": {"detector": "gradient-norm", "eta": 0.5, "cadence": 10},
        "impairments": [
            {"kind": "loss", "name": "", "rounds": [4], "q": 0.9, **common},
            {"kind": "burst", "name": "background", "rounds": [8], **common},
        ],
    }


def _status(verdict: str, reason: str, seed: int) -> dict[str, Any]:
    return {
        "schema": 1,
        "verdict": verdict,
        "reason": reason,
        "began_at": f"2026-01-0{seed % 9 + 1}T00:00:00+00:00",
        "ended_at": f"2026-01-0{seed % 9 + 1}T00:00:09+00:00",
        "wall_s": 9.0,
        "gates": [
            {
                "name": "rate",
                "value": 0.01 if verdict == "ok" else 0.2,
                "limit": 0.1,
                "outcome": "passed" if verdict == "ok" else "failed",
            }
        ],
    }
