"""Prints an experiment's topologies for `./lab plan`: a table of each, and a picture if wanted."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

import topologies
from testbed.cli import topology_picture
from testbed.cli.terminal import PlainTable
from testbed.shared.yaml_input import InputError

_MOST_NAMED_LINKS = 3


def show(runs: Sequence[Any], console: Console, folder: Path | None = None) -> None:
    """Print every distinct topology of the runs, and draw it into `folder` where there is one.

    Raises:
        InputError: a picture cannot be written.
    """
    for number, (runs_of_it, parameters) in enumerate(distinct(runs), start=1):
        topology = topologies.build(parameters)
        kinds = link_kinds(topology)
        title = _title(parameters, runs_of_it, len(runs))
        rtt_ms = 1e3 * topology.longest_rtt_s()
        console.print(
            f"\n{title}: {len(topology.hosts())} hosts, {len(topology.switches())} switches; "
            f"longest round trip without queues {rtt_ms:g} ms",
            highlight=False,
            soft_wrap=True,
        )
        if roles := getattr(topology, "roles", {}):
            told = ", ".join(f"{name} is {role}" for name, role in roles.items())
            console.print(f"hosts: {told}", highlight=False, soft_wrap=True)
        console.print(_nodes(topology))
        console.print(_links(kinds))
        if folder is None:
            continue
        of_it = "topology" if number == 1 else f"topology-{number}"
        stem = f"{runs[0].experiment.name}-{of_it}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            paths = topology_picture.draw(topology, kinds, title, folder / stem)
        except OSError as error:
            raise InputError(f"{error.filename or folder}: {error.strerror}") from None
        for path in paths:
            console.print(f"picture: {path}", highlight=False, soft_wrap=True)


def distinct(runs: Sequence[Any]) -> list[tuple[list[Any], Any]]:
    """The topologies of the runs in order of appearance, each with the runs that use it."""
    found: dict[str, tuple[list[Any], Any]] = {}
    for run in runs:
        parameters = run.experiment.topology
        found.setdefault(parameters.model_dump_json(), ([], parameters))[0].append(run)
    return list(found.values())


def link_kinds(topology: Any) -> dict[str, list[str]]:
    """The links by their properties: `core: 100 Mbit/s, 10 ms, ...` -> their names."""
    kinds: dict[str, list[str]] = {}
    for name, options in topology.link_options().items():
        is_core = all(topology.isSwitch(node) for node in name.split("--"))
        words = f"{'core' if is_core else 'host'}: {options_in_words(options)}"
        kinds.setdefault(words, []).append(name)
    return kinds


def options_in_words(options: dict[str, Any]) -> str:
    """A link's rate, delay one way and queue, and its other properties that are not zero."""
    parts = [_quantity(options["rate_bps"], "bit/s")]
    if options["delay_s"]:
        jitter = f" ± {1e3 * options['jitter_s']:g} ms" if options["jitter_s"] else ""
        parts.append(f"{1e3 * options['delay_s']:g} ms{jitter}")
    parts.append(f"queue {_quantity(options['queue_bytes'], 'B')}")
    if options["loss"]:
        parts.append(f"loss {100 * options['loss']:g} %")
    if options["ecn_threshold_bytes"] is not None:
        parts.append(f"ECN above {_quantity(options['ecn_threshold_bytes'], 'B')}")
    if "priority_queue_bytes" in options:
        parts.append(f"{_quantity(options['priority_queue_bytes'], 'B')} for protected datagrams")
    return ", ".join(parts)


def compressed(names: Iterable[str]) -> str:
    """`worker-1..3,5` for worker-1, worker-2, worker-3, worker-5."""
    groups: dict[str, list[int]] = {}
    for name in names:
        match = re.fullmatch(r"(.*-)(\d+)", name)
        prefix, number = (match[1], int(match[2])) if match else (name, -1)
        groups.setdefault(prefix, []).append(number)
    return "  ".join(prefix + _ranges(sorted(numbers)) for prefix, numbers in groups.items())


def _ranges(numbers: list[int]) -> str:
    if numbers == [-1]:
        return ""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts: list[str] = []
    for run in runs:
        texts += [f"{run[0]}..{run[-1]}"] if len(run) > 2 else map(str, run)
    return ",".join(texts)


def _title(parameters: Any, runs: Sequence[Any], of: int) -> str:
    name = Path(parameters.name).name
    keys = [
        key for key in runs[0].factors if key.startswith("topology.") and key != "topology.name"
    ]
    chosen = [f"{key.partition('.')[2]} {json.dumps(runs[0].factors[key])}" for key in keys]
    share = f" ({len(runs)} of {of} runs)" if len(runs) < of else ""
    return "topology " + ", ".join([name, *chosen]) + share


def _nodes(topology: Any) -> PlainTable:
    hosts = set(topology.hosts())
    graph = topology.as_graph()
    table = PlainTable("switch", "hosts", "other switches")
    for switch in topology.switches():
        near = topology.sorted(graph.neighbors(switch))
        table.add_row(
            switch,
            compressed(node for node in near if node in hosts),
            compressed(node for node in near if node not in hosts),
        )
    return table


def _links(kinds: dict[str, list[str]]) -> PlainTable:
    table = PlainTable("links", "each direction", "which")
    for words, names in kinds.items():
        shown = names if len(names) <= _MOST_NAMED_LINKS else [names[0], "...", names[-1]]
        table.add_row(str(len(names)), words, "  ".join(shown))
    return table


def _quantity(value: float, unit: str) -> str:
    """Three digits and a decimal prefix: 100 Mbit/s, 150 kB."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:g} {unit}"
