"""Renders what a capture holds, as text of bounded length and as JSON."""

from __future__ import annotations

import socket
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from testbed.capture.contents import Contents
from testbed.capture.dissect import Dissection
from testbed.capture.transfers import Pass, Transfer

SCHEMA = 1
_MOST_ROWS = 24
_MOST_LINES = 60
_MOST_IN_DETAIL = 16
_FILE_WIDTH = 132
_PASSES_SHOWN = 3


def as_json(found: Dissection, number: int | None) -> dict[str, Any]:
    """The capture as JSON, or its transfers of one number; times count from the first packet."""
    contents = found.contents
    return {
        "schema": SCHEMA,
        "file": str(found.path),
        "problem": found.problem,
        "packets": contents.packets,
        "foreign_packets": contents.foreign,
        "began_at": _time_of_day(contents),
        "duration_s": _duration_s(contents),
        "sessions": list(contents.sessions),
        "peers": {name: contents.name_of(address) for name, address in _peers(contents)},
        "messages": dict(contents.messages),
        "strays": [
            {"reason": reason, "source": source, "datagrams": count}
            for (reason, source), count in contents.strays.most_common()
        ],
        "lost_track": contents.lost_track,
        "untold_transfers": contents.untold_transfers,
        "transfers": [
            each.as_json(contents.began_ns, contents.name_of) for each in _chosen(contents, number)
        ],
    }


def console() -> Console:
    """The console to print on; without a terminal its lines are wide."""
    shown = Console(highlight=False, soft_wrap=True)
    return shown if shown.is_terminal else Console(soft_wrap=True, width=_FILE_WIDTH)


def show(found: Dissection, number: int | None, console: Console) -> None:
    """Print the overview, or the transfers of one number in detail."""
    contents = found.contents
    if number is not None:
        chosen = _chosen(contents, number)
        for transfer in chosen[:_MOST_IN_DETAIL]:
            _show_transfer(contents, transfer, console)
        if len(chosen) > _MOST_IN_DETAIL:
            console.print(f"{len(chosen) - _MOST_IN_DETAIL} more (--json has them)")
        return
    _show_capture(found, console)
    console.print(_legs_table(contents))
    chosen = sorted(contents.transfers, key=lambda each: each.duration_s)[-_MOST_ROWS:]
    chosen.sort(key=lambda each: each.began_ns)
    if chosen:
        title = "All transfers"
        if len(chosen) < len(contents.transfers):
            title = f"The slowest {len(chosen)} of {len(contents.transfers)} transfers"
        console.print("", f"[bold]{title}[/]", _transfers_table(contents, chosen), sep="\n")
    _show_rest(contents, console)


def _chosen(contents: Contents, number: int | None) -> list[Transfer]:
    return [each for each in contents.transfers if number in (None, each.number)]


def _peers(contents: Contents) -> list[tuple[str, bytes]]:
    return [(socket.inet_ntoa(address), address) for address in contents.names]


def _time_of_day(contents: Contents) -> str:
    return datetime.fromtimestamp(contents.began_ns / 1e9, UTC).isoformat(timespec="milliseconds")


def _duration_s(contents: Contents) -> float:
    return max(0, contents.ended_ns - contents.began_ns) / 1e9


def _show_capture(found: Dissection, console: Console) -> None:
    contents = found.contents
    began = _time_of_day(contents).replace("T", " ").replace("+00:00", " UTC")
    foreign = f"; {contents.foreign:,} not ours" if contents.foreign else ""
    console.print(
        f"[bold]{escape(str(found.path))}[/]: {contents.packets:,} packets in "
        f"{_duration_s(contents):.3f} s, from {began}{foreign}"
    )
    for session in contents.sessions:
        size = ""
        if layout := contents.layouts.get(session):
            chunks = f"{layout.chunk_count:,} chunks of {layout.chunk_bytes}"
            size = f", payload {layout.payload_bytes:,} bytes in {chunks}"
        console.print(f"session {session:#010x}{size}")
    peers = sorted((contents.name_of(address), shown) for shown, address in _peers(contents))
    if peers:
        few = ", ".join(f"{name} {shown}" for name, shown in peers[:12])
        console.print(few + (f" and {len(peers) - 12} more" if len(peers) > 12 else ""))
    else:
        console.print("the capture began after the peers had joined: no names, no layout")
    console.print()


def _legs_table(contents: Contents) -> Table:
    table = _table("leg", "transfers", "median ms", "slowest", "packets", "repeated")
    for column in ("copies", "after Stop", "passes", "most", "control %"):
        table.add_column(column, justify="right")
    groups: dict[tuple[str, str], list[Transfer]] = {}
    for each in contents.transfers:
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


def _transfers_table(contents: Contents, transfers: Sequence[Transfer]) -> Table:
    numbers = ("number", "at s", "ms", "packets", "repeated", "passes")
    table = _table("leg", "from > to", *numbers, words=2)
    table.add_column("packets in each (then missing)")
    for each in transfers:
        table.add_row(
            each.leg,
            _direction(contents, each),
            str(each.number),
            f"{(each.began_ns - contents.began_ns) / 1e9:.3f}",
            f"{each.duration_s * 1e3:.1f}",
            *(f"{each.datagrams:,}", f"{each.repeated:,}"),
            str(len(each.passes)) if each.carrier == "udp" else "-",
            _passes_in_short(each.passes)
            + ("" if each.stopped_ns is not None else " [yellow]no Stop[/]"),
        )
    return table


def _direction(contents: Contents, transfer: Transfer) -> str:
    return f"{contents.name_of(transfer.sender)} > {contents.name_of(transfer.receiver)}"


def _passes_in_short(passes: Sequence[Pass]) -> str:
    texts = [
        f"{each.datagrams}" + ("" if each.missing is None else f" ({each.missing})")
        for each in passes
    ]
    if (skipped := len(texts) - _PASSES_SHOWN - 1) > 0:
        texts[_PASSES_SHOWN:-1] = [f"{skipped} more"]
    return " ".join(texts)


def _show_rest(contents: Contents, console: Console) -> None:
    said = ", ".join(f"{name} {count:,}" for name, count in contents.messages.most_common(12))
    console.print("", f"control messages: {said or 'none'}", sep="\n")
    total = sum(contents.strays.values())
    console.print(f"datagrams that belong to no session: {total:,}")
    for (reason, source), count in contents.strays.most_common(8):
        console.print(f"  {count:,} {reason}, from {source}")
    if contents.lost_track:
        console.print(
            f"[yellow]control messages may be missing: packets of {contents.lost_track} were not "
            "captured, or not whole[/]"
        )
    if contents.untold_transfers:
        console.print(f"[yellow]more transfers than can be told: {contents.untold_transfers:,}[/]")
    if contents.transfers:
        busiest = max(contents.transfers, key=lambda each: each.duration_s).number
        console.print(f"one in detail: --transfer {busiest}; all of them: --json")


def _show_transfer(contents: Contents, transfer: Transfer, console: Console) -> None:
    chunks = "?" if transfer.chunk_count is None else f"{transfer.chunk_count:,}"
    unit = "segments" if transfer.carrier == "tcp" else "datagrams"
    began_s = (transfer.began_ns - contents.began_ns) / 1e9
    console.print(
        f"[bold]transfer {transfer.number}[/] (round {transfer.round}, {transfer.leg}) "
        f"{_direction(contents, transfer)}, at {began_s:.6f} s: "
        f"{transfer.duration_s * 1e3:.3f} ms, {chunks} chunks, {transfer.datagrams:,} {unit}, "
        f"{transfer.repeated:,} repeated, {transfer.duplicates:,} copies, "
        f"{transfer.late:,} after Stop"
    )
    lines = [(each.time_ns, each.name, each.note) for each in transfer.events]
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


def _pass_line(index: int, each: Pass) -> tuple[int, str, str]:
    took_ms = (each.ended_ns - each.began_ns) / 1e6
    fresh = "" if each.fresh == each.datagrams else f", {each.fresh:,} of them new"
    return each.began_ns, f"pass {index}", f"{each.datagrams:,} in {took_ms:.3f} ms{fresh}"
