"""A capture's story as text of bounded length, and as JSON."""

from __future__ import annotations

import socket
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from testbed.capture.dissect import Dissection
from testbed.capture.story import Story
from testbed.capture.transfers import Event, Pass, Transfer

SCHEMA = 1
_MOST_ROWS = 24
_MOST_LINES = 60
_MOST_IN_DETAIL = 16
# Without a terminal there is no width to respect.
_FILE_WIDTH = 132
_PASSES_SHOWN = 3


def as_json(found: Dissection, number: int | None) -> dict[str, Any]:
    """Everything, or the transfers of one number; times are seconds since the capture began."""
    story = found.story
    return {
        "schema": SCHEMA,
        "file": str(found.path),
        "problem": found.problem,
        "packets": story.packets,
        "foreign_packets": story.foreign,
        "began_at": _time_of_day(story),
        "duration_s": _duration_s(story),
        "sessions": list(story.sessions),
        "peers": {name: story.name_of(address) for name, address in _peers(story)},
        "messages": dict(story.messages),
        "strays": [
            {"reason": reason, "source": source, "datagrams": count}
            for (reason, source), count in story.strays.most_common()
        ],
        "lost_track": story.lost_track,
        "untold_transfers": story.untold_transfers,
        "transfers": [
            each.as_json(story.began_ns, story.name_of) for each in _chosen(story, number)
        ],
    }


def console() -> Console:
    """Where to tell a story."""
    shown = Console(highlight=False, soft_wrap=True)
    return shown if shown.is_terminal else Console(soft_wrap=True, width=_FILE_WIDTH)


def tell(found: Dissection, number: int | None, console: Console) -> None:
    """Prints the overview, or the story of the transfers of one number."""
    story = found.story
    if number is not None:
        chosen = _chosen(story, number)
        for transfer in chosen[:_MOST_IN_DETAIL]:
            _tell_transfer(story, transfer, console)
        if len(chosen) > _MOST_IN_DETAIL:
            console.print(f"{len(chosen) - _MOST_IN_DETAIL} more (--json has them)")
        return
    _tell_capture(found, console)
    console.print(_legs_table(story))
    chosen = sorted(story.transfers, key=lambda each: each.duration_s)[-_MOST_ROWS:]
    chosen.sort(key=lambda each: each.began_ns)
    if chosen:
        title = "All transfers"
        if len(chosen) < len(story.transfers):
            title = f"The slowest {len(chosen)} of {len(story.transfers)} transfers"
        console.print("", f"[bold]{title}[/]", _transfers_table(story, chosen), sep="\n")
    _tell_rest(story, console)


def _chosen(story: Story, number: int | None) -> list[Transfer]:
    return [each for each in story.transfers if number in (None, each.number)]


def _peers(story: Story) -> list[tuple[str, bytes]]:
    return [(socket.inet_ntoa(address), address) for address in story.names]


def _time_of_day(story: Story) -> str:
    return datetime.fromtimestamp(story.began_ns / 1e9, UTC).isoformat(timespec="milliseconds")


def _duration_s(story: Story) -> float:
    return max(0, story.ended_ns - story.began_ns) / 1e9


def _tell_capture(found: Dissection, console: Console) -> None:
    story = found.story
    began = _time_of_day(story).replace("T", " ").replace("+00:00", " UTC")
    foreign = f"; {story.foreign:,} not ours" if story.foreign else ""
    console.print(
        f"[bold]{escape(str(found.path))}[/]: {story.packets:,} packets in "
        f"{_duration_s(story):.3f} s, from {began}{foreign}"
    )
    for session in story.sessions:
        layout = story.layouts.get(session)
        size = (
            f", payload {layout.payload_bytes:,} bytes in {layout.chunk_count:,} chunks of "
            f"{layout.chunk_bytes}"
            if layout
            else ""
        )
        console.print(f"session {session:#010x}{size}")
    peers = sorted((story.name_of(address), shown) for shown, address in _peers(story))
    if peers:
        few = ", ".join(f"{name} {shown}" for name, shown in peers[:12])
        console.print(few + (f" and {len(peers) - 12} more" if len(peers) > 12 else ""))
    else:
        console.print("the capture began after the peers had joined: no names, no layout")
    console.print()


def _legs_table(story: Story) -> Table:
    table = _table("leg", "transfers", "median ms", "slowest", "packets", "repeated")
    for column in ("copies", "after Stop", "passes", "most", "control %"):
        table.add_column(column, justify="right")
    groups: dict[tuple[str, str], list[Transfer]] = {}
    for each in story.transfers:
        groups.setdefault((each.leg, each.carrier), []).append(each)
    for (leg, carrier), members in sorted(groups.items(), reverse=True):
        took_ms = [each.duration_s * 1e3 for each in members]
        passes = [len(each.passes) for each in members if each.carrier == "udp"]
        data_bytes = sum(each.data_bytes for each in members)
        control = sum(each.message_bytes for each in members) / data_bytes if data_bytes else 0
        table.add_row(
            *(leg if carrier == "udp" else f"{leg}, {carrier}", f"{len(members):,}"),
            *(f"{statistics.median(took_ms):.1f}", f"{max(took_ms):.1f}"),
            *(_sum(members, "datagrams"), _sum(members, "repeated")),
            *(_sum(members, "duplicates"), _sum(members, "late")),
            f"{statistics.fmean(passes):.2f}" if passes else "-",
            str(max(passes)) if passes else "-",
            f"{100 * control:.2f}",
        )
    return table


def _sum(members: Sequence[Transfer], name: str) -> str:
    return f"{sum(getattr(each, name) for each in members):,}"


def _table(*columns: str, words: int = 1) -> Table:
    """A table whose first columns are words and whose others are numbers."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < words else "right", no_wrap=True)
    return table


def _transfers_table(story: Story, transfers: Sequence[Transfer]) -> Table:
    numbers = ("number", "at s", "ms", "packets", "repeated", "passes")
    table = _table("leg", "from > to", *numbers, words=2)
    table.add_column("packets in each (then missing)")
    for each in transfers:
        table.add_row(
            each.leg,
            _direction(story, each),
            str(each.number),
            f"{(each.began_ns - story.began_ns) / 1e9:.3f}",
            f"{each.duration_s * 1e3:.1f}",
            *(f"{each.datagrams:,}", f"{each.repeated:,}"),
            str(len(each.passes)) if each.carrier == "udp" else "-",
            _passes_in_short(each.passes)
            + ("" if each.stopped_ns is not None else " [yellow]no Stop[/]"),
        )
    return table


def _direction(story: Story, transfer: Transfer) -> str:
    return f"{story.name_of(transfer.sender)} > {story.name_of(transfer.receiver)}"


def _passes_in_short(passes: Sequence[Pass]) -> str:
    shown = list(passes[:_PASSES_SHOWN])
    texts = [_pass_in_short(each) for each in shown]
    if len(passes) > _PASSES_SHOWN:
        skipped = len(passes) - _PASSES_SHOWN - 1
        texts += ([f"{skipped} more"] if skipped else []) + [_pass_in_short(passes[-1])]
    return " ".join(texts)


def _pass_in_short(each: Pass) -> str:
    return f"{each.datagrams}" + ("" if each.missing is None else f" ({each.missing})")


def _tell_rest(story: Story, console: Console) -> None:
    said = ", ".join(f"{name} {count:,}" for name, count in story.messages.most_common(12))
    console.print("", f"control messages: {said or 'none'}", sep="\n")
    total = sum(story.strays.values())
    console.print(f"datagrams that belong to no session: {total:,}")
    for (reason, source), count in story.strays.most_common(8):
        console.print(f"  {count:,} {reason}, from {source}")
    if story.lost_track:
        console.print(
            f"[yellow]control messages may be missing: packets of {story.lost_track} were not "
            "captured, or not whole[/]"
        )
    if story.untold_transfers:
        console.print(f"[yellow]more transfers than can be told: {story.untold_transfers:,}[/]")
    if story.transfers:
        busiest = max(story.transfers, key=lambda each: each.duration_s).number
        console.print(f"one in detail: --transfer {busiest}; all of them: --json")


def _tell_transfer(story: Story, transfer: Transfer, console: Console) -> None:
    chunks = "?" if transfer.chunk_count is None else f"{transfer.chunk_count:,}"
    unit = "segments" if transfer.carrier == "tcp" else "datagrams"
    console.print(
        f"[bold]transfer {transfer.number}[/] (round {transfer.round}, {transfer.leg}) "
        f"{_direction(story, transfer)}, at {(transfer.began_ns - story.began_ns) / 1e9:.6f} s: "
        f"{transfer.duration_s * 1e3:.3f} ms, {chunks} chunks, {transfer.datagrams:,} {unit}, "
        f"{transfer.repeated:,} repeated, {transfer.duplicates:,} copies, "
        f"{transfer.late:,} after Stop"
    )
    lines: list[tuple[int, str, str]] = [_message_line(each) for each in transfer.events]
    lines += [_pass_line(index, each) for index, each in enumerate(transfer.passes, start=1)]
    lines.sort(key=lambda each: each[0])
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("ms", justify="right")
    table.add_column("what")
    table.add_column("")
    half = _MOST_LINES // 2
    cut = lines if len(lines) <= _MOST_LINES else lines[:half] + lines[-half:]
    for index, (time_ns, what, note) in enumerate(cut):
        if len(cut) < len(lines) and index == half:
            table.add_row("", f"… {len(lines) - len(cut)} more (--json has them) …", "")
        table.add_row(f"{(time_ns - transfer.began_ns) / 1e6:.3f}", what, note)
    console.print(table, "", sep="\n")


def _message_line(event: Event) -> tuple[int, str, str]:
    return event.time_ns, event.name, event.note


def _pass_line(index: int, each: Pass) -> tuple[int, str, str]:
    took_ms = (each.ended_ns - each.began_ns) / 1e6
    fresh = "" if each.fresh == each.datagrams else f", {each.fresh:,} of them new"
    return each.began_ns, f"pass {index}", f"{each.datagrams:,} in {took_ms:.3f} ms{fresh}"
