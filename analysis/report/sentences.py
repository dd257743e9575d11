"""Numbers in the sentences of pages: checked against what is kept, and written anew from it.

Under a text that states numbers stands a comment, a line for each number:

    <!-- stored
    regime-map [2.1, 0.9] | ratios fixed-low/dblp round_latency_s.mean | 3.86 (3.50 to 4.34)
    burst-price [at sender, 0 to at sender, 0.1] | contrasts fixed-low/dblp training_time_s | 1.75
    quick | arms dblp accuracy x 100 | 93.6
    bench | 100M/loss-20%/passes ratio_to_bound | 1.02
    peer | 1G/loss-60%/P-0.8%/passes / 1G/loss-60%/P-40.8%/passes completion_s | 1.7
    -->

The first part names the experiment and, in brackets, its point or two; the second the entry, with
`x FACTOR` for another unit (of a bench it names a case, or two for their ratio; `paired A/B METRIC`
is the ratio of any two arms over the seeds that both have); the third is the text, which must stand
above, word for word. Its numbers are the kept value, the interval, or both, to the digits that are
shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from analysis.data.evidence import FACTOR_PREFIX
from analysis.statistics import ratio_interval

Entry = Mapping[str, Any]  # `value`, and `low` and `high` where there is an interval

# How comments call the kept records of `./lab bench`, and their files.
BENCHES = {"bench": "transport", "peer": "peer", "peer-nodelay": "peer-nodelay"}

_COMMENT = re.compile(r"<!-- stored\n(.*?)-->", re.DOTALL)
_GENERATED = re.compile(r"<!-- ([a-z0-9-]+): begin -->\n.*?<!-- \1: end -->", re.DOTALL)
_INTERVAL = re.compile(r"-?[\d.]+(?: to |\u2013)-?[\d.]+")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A line of a comment: `shown` is the text, and the rest says which number it states."""

    line: str
    where: str
    entry: str
    factor: float
    shown: str


class Kept:
    """What the folders of kept results hold, read once."""

    def __init__(self, results: Path) -> None:
        self._results = results
        self._documents: dict[str, Any] = {}

    def entry(self, where: str, path: str) -> Entry:
        """The entry of a claim."""
        name, _, point = where.partition(" [")
        if name in BENCHES:
            return self._of_bench(f"bench/{BENCHES[name]}.json", path)
        if " over " in point:  # by how many per cent the first point's value is larger
            first, second = (
                self.entry(f"{name} [{each}", path) for each in point[:-1].split(" over ")
            )
            return {"value": (first["value"] / second["value"] - 1) * 100}
        point = point.rstrip("]")
        if path.startswith("paired "):
            return self._paired(name, point, *path.split()[1:])
        between = path.startswith("contrasts ")
        found = self._contrast(name, point) if between else self._place(name, point)
        section, *words = path.split()
        if section == "contrasts":
            return _within(found["ratios"], *words)
        if section == "published":
            metric, identifier = words
            entries = [each for each in found[section][metric] if each["id"] == identifier]
            return dict(_only(entries, identifier)["ours"])
        return _within(found[section], *words)

    def _place(self, name: str, point: str) -> Any:
        summary = self._document(f"{name}/summary.json")
        if not point:
            return summary
        wanted = [each.strip() for each in point.split(",")]
        points = summary["points"]
        found = [each for each in points if list(each["factors"].values()) == wanted]
        return _only(found, f"[{point}]")

    def _contrast(self, name: str, points: str) -> Any:
        ends = [[each.strip() for each in point.split(",")] for point in points.split(" to ")]
        found = [
            each
            for each in self._document(f"{name}/summary.json")["contrasts"]
            if [list(each[end].values()) for end in ("from", "to")] == ends
        ]
        return _only(found, f"[{points}]")

    def _paired(self, name: str, point: str, arms: str, metric: str) -> Entry:
        """The ratio of two arms of which neither need be the reference, over pairs of a seed."""
        rows = pl.read_csv(self._results / name / "rows.csv", infer_schema=False)
        if metric not in rows.columns:
            raise LookupError(metric)
        factors = [each for each in rows.columns if each.startswith(FACTOR_PREFIX)]
        wanted = [each.strip() for each in point.split(",")] if point else []
        for column, value in zip(factors, wanted, strict=True):
            rows = rows.filter(pl.col(column) == value)
        first, second = (rows.filter(pl.col("arm") == each) for each in arms.split("/"))
        pairs = first.join(second, on="seed").select(
            pl.col(metric, f"{metric}_right").cast(pl.Float64)
        )
        if pairs.is_empty():
            raise LookupError(f"no pair of {arms} at [{point}]")
        return ratio_interval(*pairs.drop_nulls().to_numpy().T).as_json()

    def _of_bench(self, file: str, path: str) -> Entry:
        """A case's value; of `A / B` the ratio of two cases' values."""
        cases, key = path.rsplit(maxsplit=1)
        values = [self._of_case(file, case)[key] for case in cases.split(" / ")]
        return {"value": values[0] / values[1] if len(values) > 1 else values[0]}

    def _of_case(self, file: str, case: str) -> Any:
        return _only([each for each in self._document(file) if each["case"] == case], case)

    def _document(self, name: str) -> Any:
        if name not in self._documents:
            text = (self._results / name).read_text(encoding="utf-8")
            self._documents[name] = json.loads(text)
        return self._documents[name]


def claims(text: str) -> Iterator[tuple[list[Claim], str]]:
    """For each comment of a page its lines, and the text that they speak of."""
    end = 0
    for comment in _COMMENT.finditer(text):
        above = _GENERATED.sub("", text[end : comment.start()])
        yield [_claim(line) for line in comment[1].splitlines()], " ".join(above.split())
        end = comment.end()


def disagreement(claim: Claim, above: str, kept: Kept) -> str | None:
    """What is wrong with a claim, in words; None if nothing is."""
    if not re.search(_as_shown(claim), above):
        return f"no {claim.shown!r} stands above the line {claim.line!r}"
    try:
        found = _scaled(kept.entry(claim.where, claim.entry), claim.factor)
    except FileNotFoundError as error:
        raise ValueError(f"{error.filename}: missing, and {claim.line!r} speaks of it") from None
    except (LookupError, ValueError, TypeError, OSError) as error:
        return f"no entry of the line {claim.line!r}: {error}"
    if agrees(claim.shown, found):
        return None
    return f"{claim.shown!r} of the line {claim.line!r}; kept: {_told(found)}"


def agrees(text: str, found: Entry) -> bool:
    """Whether all numbers of the text are those of the entry, to the digits that are shown."""
    shown = [(key, number[0]) for key, number in _shown(text)]
    return bool(shown) and all(_rounds_to(found.get(key), number) for key, number in shown)


def renewed(text: str, kept: Kept) -> str:
    """A page with each number that does not agree as it is kept; what has no entry stays."""
    parts = []
    end = 0
    for comment in _COMMENT.finditer(text):
        above, lines = text[end : comment.start()], comment[0]
        new: dict[str, str] = {}
        for claim in map(_claim, comment[1].splitlines()):
            changed = _renewed(claim, kept)
            if _ambiguous(claim.shown, above):
                continue
            if changed != claim.shown and new.setdefault(claim.shown, changed) == changed:
                lines = lines.replace(claim.line, claim.line.replace(claim.shown, changed))
        parts += [_replaced(above, new), lines]
        end = comment.end()
    return "".join([*parts, text[end:]])


def intervals(text: str) -> tuple[set[str], list[str]]:
    """The intervals that comments of a page name, and those that stand in brackets in its text."""
    bare = _GENERATED.sub("", text)
    prose = " ".join(_COMMENT.sub("", bare).split())
    named = set(_INTERVAL.findall(" ".join(_COMMENT.findall(bare))))
    return named, re.findall(r"\((?:n = \d+, )?(-?[\d.]+ to -?[\d.]+)", prose)


def _claim(line: str) -> Claim:
    parts = [part.strip() for part in line.split(" | ")]
    if len(parts) != 3:
        raise ValueError(f"{line!r}: {len(parts)} parts; valid: WHERE | ENTRY | TEXT")
    where, entry, shown = parts
    path, _, factor = entry.partition(" x ")
    return Claim(line=line, where=where, entry=path, factor=float(factor or 1), shown=shown)


def _as_shown(claim: Claim) -> str:
    return rf"(?<![\d.-]){re.escape(claim.shown)}"


def _scaled(found: Entry, factor: float) -> dict[str, float]:
    ends = sorted(found[end] * factor for end in ("low", "high") if found.get(end) is not None)
    scaled = {"value": found["value"] * factor}
    return scaled | dict(zip(("low", "high"), ends, strict=False))


def _shown(text: str) -> list[tuple[str, re.Match[str]]]:
    """The numbers of a text, each with what it is: the value before the interval, and its ends."""
    digits = re.sub(r"(?<=\d)-(?=\d)", " ", text)
    interval = _INTERVAL.search(digits)
    shown = []
    if value := _NUMBER.search(digits, 0, interval.start() if interval else len(digits)):
        shown.append(("value", value))
    if interval:
        ends = _NUMBER.finditer(digits, *interval.span())
        shown += list(zip(("low", "high"), ends, strict=True))
    return shown


def _rounds_to(value: float | None, shown: str) -> bool:
    # A kept value that lies on the edge (six digits are kept) may be rounded either way.
    return value is not None and abs(value - float(shown)) <= 0.5000001 * 10 ** -_decimals(shown)


def _decimals(shown: str) -> int:
    return len(shown.partition(".")[2])


def _renewed(claim: Claim, kept: Kept) -> str:
    """The text of a claim with the kept numbers, or as it is where it agrees or has no entry."""
    try:
        found = _scaled(kept.entry(claim.where, claim.entry), claim.factor)
    except (LookupError, ValueError, TypeError, OSError):
        return claim.shown
    text = claim.shown
    if agrees(text, found):
        return text
    for key, number in reversed(_shown(text)):
        value = found.get(key)
        if value is not None and not _rounds_to(value, number[0]):
            new = f"{value:.{_decimals(number[0])}f}"
            text = text[: number.start()] + new + text[number.end() :]
    return text


def _replaced(above: str, new: Mapping[str, str]) -> str:
    """The text with new numbers, outside its generated blocks; it may break lines anywhere."""
    if not new:
        return above
    any_of = _anywhere(*sorted(new, key=len)[::-1])

    def of_prose(prose: str) -> str:
        return any_of.sub(lambda found: _with_words(found[0], new), prose)

    parts, end = [], 0
    for block in _GENERATED.finditer(above):
        parts += [of_prose(above[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, of_prose(above[end:])])


def _anywhere(*texts: str) -> re.Pattern[str]:
    """Finds any of the texts, wherever lines break."""
    patterns = [r"\s+".join(map(re.escape, each.split())) for each in texts]
    return re.compile(rf"(?<![\d.-])(?:{'|'.join(patterns)})(?!\d|\.\d)")


def _ambiguous(text: str, above: str) -> bool:
    """Whether a text may speak of another number as well."""
    times = len(_anywhere(text).findall(_GENERATED.sub("", above)))
    return times > 1 and _INTERVAL.search(text) is None


def _with_words(text: str, new: Mapping[str, str]) -> str:
    """The new words of a text, with its own spaces and line breaks."""
    words = iter(new[" ".join(text.split())].split())
    return re.sub(r"\S+", lambda _: next(words), text)


def _within(section: Mapping[str, Any], arms: str, metric: str) -> Entry:
    """The entry of a metric, or the number that its last key names."""
    inner = section[arms]
    for key in metric.split("."):
        inner = inner[key]
    return inner if isinstance(inner, dict) else {"value": inner}


def _only(found: list[Any], name: str) -> Any:
    if len(found) != 1:
        raise ValueError(f"{len(found)} of {name}")
    return found[0]


def _told(found: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.6g}" for name, value in found.items())
