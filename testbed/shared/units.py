"""Units that a value may be written with: `100Mbit` for a key that ends in `_bps`, `5ms` for `_s`.

A key's ending gives its unit, also before `_per_`, as in `walk_s_per_chunk`. What does not fit
stays a text, which whoever checks the value refuses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

_FORM = re.compile(
    r"\+?(?P<number>[0-9][0-9_]*(?:\.[0-9]*)?|\.[0-9]+)(?P<exponent>e[-+]?[0-9]{1,2})?"
    r" ?(?P<unit>[A-Za-z\u00b5\u03bc/]*)",
    re.IGNORECASE,
)
_LONGEST = 60  # characters of a number with its unit
_PERCENT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?%")
_DECIMAL = {"": "1", "k": "1e3", "M": "1e6", "G": "1e9", "T": "1e12"}
_BINARY = {"Ki": str(1 << 10), "Mi": str(1 << 20), "Gi": str(1 << 30), "Ti": str(1 << 40)}
_SECONDS = {"ns": "1e-9", "us": "1e-6", "ms": "1e-3", "s": "1", "min": "60", "h": "3600"}
_SECONDS |= dict.fromkeys(("\u00b5s", "\u03bcs"), "1e-6")


@dataclass(frozen=True)
class Unit:
    """The units that keys with one ending accept."""

    ending: str
    words: str  # the unit of a plain number
    factors: Mapping[str, Decimal]  # unit -> how many of the plain unit it is
    examples: str


# tc writes mbit and gbit; it means bytes by mbps, which is therefore left out.
_RATES = {
    f"{prefix}{unit}": Decimal(factor)
    for prefix, factor in _DECIMAL.items()
    for unit in ("bit", "bit/s", "bps")
} | {f"{prefix.lower()}bit": Decimal(factor) for prefix, factor in _DECIMAL.items()}
_SIZES = {f"{prefix}B": Decimal(factor) for prefix, factor in (_DECIMAL | _BINARY).items()}
_TIMES = {unit: Decimal(seconds) for unit, seconds in _SECONDS.items()}
_TIMES_MS = {unit: 1000 * seconds for unit, seconds in _TIMES.items()}
UNITS = (
    Unit("_bps", "bit/s", _RATES, "100Mbit or 1.5 Gbit/s"),
    Unit("_ms", "milliseconds", _TIMES_MS, "5ms or 0.5 s"),
    Unit("_s", "seconds", _TIMES, "5ms, 90 s or 2min"),
    Unit("_bytes", "bytes", _SIZES, "150kB (150 000) or 64KiB (65 536)"),
)


def of(key: str) -> Unit | None:
    """Return the unit of a key or key path, by its ending before any `_per_`; None: it has none."""
    last = key.rpartition(".")[2].partition("_per_")[0]
    return next((unit for unit in UNITS if last.endswith(unit.ending)), None)


def hint(key: str, value: object) -> str:
    """End a message about a wrong value of a key with its unit; nothing where it has none."""
    unit = of(key)
    if isinstance(value, str) and (share := _PERCENT.fullmatch(value.strip())):
        return f"; no per cent: write {(Decimal(share[1]) / 100).normalize():f}"
    if unit is None:
        return ""
    if isinstance(value, str) and (reason := _refusal(unit, value)):
        return f", in {unit.words}; {reason}"
    with_unit = f", or with a unit such as {unit.examples}" if isinstance(value, str) else ""
    return f", in {unit.words}{with_unit}"


def _refusal(unit: Unit, text: str) -> str:
    """Say why a text with a common unit is none here, and what to write instead."""
    parts = _FORM.fullmatch(text.strip())
    if parts is None:
        return ""
    digits, name = parts["number"] + (parts["exponent"] or ""), parts["unit"]
    prefix = "k" if name[:1] in ("k", "K") else name[:1].upper()
    if unit.ending == "_bps" and re.fullmatch(r"[kKMGT]?B(/s|ps)", name):
        bits = (Decimal(digits.replace("_", "")) * 8).normalize()
        return f"{name} is bytes per second: write {bits:f}{prefix if name[0] != 'B' else ''}bit"
    if unit.ending == "_bps" and re.fullmatch(r"[kmgt]bps", name):
        return f"{name} is bits for some and bytes for others: write {digits}{prefix}bit"
    if unit.ending == "_bytes" and re.fullmatch(r"K[Bb]?|[kMGTm]b?", name):
        return f"{name} is not clear: write {digits}{prefix}B or {digits}{prefix.upper()}iB"
    return ""


def number(key: str, text: str) -> int | float | None:
    """Return the plain number of a text with a unit; None where it is none for this key."""
    unit, parts = of(key), _FORM.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if unit is None or parts is None or parts["unit"] not in unit.factors:
        return None
    # Decimals, so that 1.1ms is the very number that 0.0011 is.
    digits = parts["number"].replace("_", "") + (parts["exponent"] or "")
    value = Decimal(digits) * unit.factors[parts["unit"]]
    return int(value) if value == value.to_integral_value() else float(value)


def converted(value: Any, key: str = "") -> Any:
    """Return the same data, with texts converted where the key, or one above, has a unit."""
    if isinstance(value, Mapping):
        return {name: converted(inner, name if of(name) else key) for name, inner in value.items()}
    if isinstance(value, list):
        return [converted(entry, key) for entry in value]
    if isinstance(value, str) and (plain := number(key, value)) is not None:
        return plain
    return value


def pattern(unit: Unit) -> str:
    """Return the regular expression of a number with a unit, for editors."""
    names = "|".join(sorted(unit.factors, key=len, reverse=True))
    return rf"^\+?([0-9][0-9_]*(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{{1,2}})? ?({names})$"


def size_in_words(bytes_: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if bytes_ >= scale:
            return f"{bytes_ / scale:.{0 if bytes_ >= 10 * scale else 1}f} {unit}"
    return f"{bytes_ / 1e3:.0f} kB" if bytes_ >= 1e3 else f"{bytes_:.0f} B"


def quantity(value: float, unit: str) -> str:
    """Write up to four digits and a decimal prefix: 100 Mbit/s, 150 kB."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:g} {unit}"
