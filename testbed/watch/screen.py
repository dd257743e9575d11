"""Renders a run in progress and its sweep for a terminal of any size."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.bar import Bar
from rich.console import ConsoleDimensions, Group, RenderableType
from rich.table import Table
from rich.text import Text

_ENDED_SHOWN = 2


def render(
    live: dict[str, Any],
    size: ConsoleDimensions,
    ended: Sequence[str] = (),
    sweep: str = "",
) -> RenderableType:
    """Render the whole screen; `sweep`: how far the sweep is."""
    parts: list[RenderableType] = [*_header(live, size.width)]
    if sweep:
        parts.append(_cut(Text(f"sweep     {sweep}"), size.width))
    parts += [_cut(Text(line, style="dim"), size.width) for line in ended[-_ENDED_SHOWN:]]
    if "queues" not in live:  # the workload has not begun, or is simulated
        return Group(*parts)
    flows, processes = live.get("flows") or [], live.get("processes") or []
    left = size.height - len(parts) - 2  # without the two tables' headings
    lower = min(max(len(flows), len(processes)), max(3, left // 2))
    upper = max(1, left - lower)
    parts.append(_queues(live["queues"], upper, size.width))
    columns = Table.grid(padding=(0, 3))
    columns.add_row(_flows(flows, lower), _processes(processes, lower))
    parts.append(columns)
    return Group(*parts)


def _header(live: dict[str, Any], width: int) -> list[Text]:
    run = live.get("run") or {}
    title = Text(f"{run.get('experiment') or ''} ", style="bold")
    title.append(f"{run.get('arm', '?')} seed {run.get('seed', '?')}", style="bold cyan")
    if "queues" not in live:
        return [_cut(title, width), Text(str(live.get("stage", "starting")))]
    title.append(f"  {_progress(live)}")
    if live.get("critical") is not None:
        title.append("  critical phase" if live["critical"] else "  relaxed phase")
    title.append(f"  {live.get('elapsed_s', 0):.0f} s", style="dim")
    latency = Text("latency   no round is over yet")
    if latencies := live.get("latencies_s"):
        of_last = f"at most {_seconds(max(latencies))} in the last {len(latencies)} rounds"
        latency = Text(f"latency   {_seconds(latencies[-1])}, {of_last}")
    impairments = Text("in force  ")
    for impairment in live["impairments"]:
        impairments.append(f"{impairment['name']} ", style="bold red")
        if impairment["since_s"] is not None:
            impairments.append(f"for {_seconds(max(0.0, live['t_s'] - impairment['since_s']))} ")
    if not live["impairments"]:
        impairments.append("no impairment", style="dim")
    return [_cut(line, width) for line in (title, latency, impairments)]


def _progress(live: Mapping[str, Any]) -> str:
    """Say how many rounds are over; nothing where programs have announced none."""
    done, rounds = live.get("rounds_done", 0), (live.get("run") or {}).get("rounds")
    if rounds:
        return f"round {done} of {rounds}"
    return f"round {done}" if done else ""


def _queues(queues: list[dict[str, Any]], rows: int, width: int) -> Table:
    """Make a row for each direction of a link, the busiest ones if there is no room for all."""
    measures = [(queue["drops"], queue["highest_bytes"], queue["sent_bps"]) for queue in queues]
    busiest = sorted(range(len(queues)), key=lambda place: measures[place], reverse=True)
    chosen = [queues[place] for place in sorted(busiest[:rows])]
    bar_columns = max(8, min(40, width - 64))
    left_out = f" (busiest of {len(queues)})" if len(chosen) < len(queues) else ""
    table = _table(f"queue{left_out}", "", "kB", "drops", "new", "Mbit/s")
    for queue in chosen:
        share = min(1.0, queue["highest_bytes"] / max(1, queue["queue_bytes"]))
        style = "red" if share > 0.9 else "yellow" if share > 0.5 else "green"
        first, _, second = str(queue["link"]).partition("--")
        sender = queue["from"]
        table.add_row(
            f"{sender} → {second if sender == first else first}",
            Bar(1, 0, share, width=bar_columns, color=style),
            f"{queue['highest_bytes'] / 1e3:.0f}/{queue['queue_bytes'] / 1e3:.0f}",
            Text(str(queue["drops"]), style="red" if queue["drops"] else "dim"),
            Text(f"+{queue['new_drops']}", style="bold red") if queue["new_drops"] else Text(""),
            f"{queue['sent_bps'] / 1e6:.1f}",
        )
    return table


def _table(*headings: str) -> Table:
    """Make a table with these headings; all columns but the first are numbers."""
    table = Table.grid(padding=(0, 2))
    for number, heading in enumerate(headings):
        table.add_column(justify="right" if number and heading else "left", no_wrap=True)
    table.add_row(*(Text(heading, style="bold underline") for heading in headings))
    return table


def _flows(flows: list[dict[str, Any]], rows: int) -> Table:
    more = f" ({rows - 1} of {len(flows)})" if len(flows) > rows else ""
    table = _table(f"flow{more}", "window", "RTT", "Mbit/s")
    for flow in flows[: rows if not more else rows - 1]:
        window, rtt_s, rate_bps = flow.get("cwnd_bytes"), flow.get("rtt_s"), flow.get("rate_bps")
        table.add_row(
            f"{flow['host']} → {flow['peer']}",
            "-" if window is None else f"{window / 1e3:.0f} kB",
            "-" if rtt_s is None else f"{rtt_s * 1e3:.1f} ms",
            "-" if rate_bps is None else f"{rate_bps / 1e6:.0f}",
        )
    return table


def _processes(processes: list[dict[str, Any]], rows: int) -> Table:
    table = _table("process", "CPU", "MB")
    busiest = sorted(processes, key=lambda process: -(process.get("cpu") or 0.0))
    for process in busiest[:rows]:
        cpu = process.get("cpu")
        share = "-" if cpu is None else f"{cpu * 100:.0f} %"
        table.add_row(process["name"], share, f"{process['rss_bytes'] / 1e6:.0f}")
    return table


def _seconds(value_s: float) -> str:
    return f"{value_s * 1e3:.0f} ms" if value_s < 1 else f"{value_s:.2f} s"


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    return text
