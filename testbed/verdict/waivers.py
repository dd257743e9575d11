"""Which gates an experiment waives: by name, or by a limit that is looser than its default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from testbed.verdict.gate import Gate
from testbed.verdict.gate_explanations import GATES
from testbed.verdict.limits import Limits


def marked(gate: Gate, limits: Mapping[str, Any]) -> Gate:
    """The gate, with what the experiment says about it.

    Where `limits.waive` names it, it does not decide. A looser limit decides, but is told to
    whoever reads the results. Keys that share one explanation belong to one gate.
    """
    keys = [key for key, about in GATES.items() if about is GATES[gate.key]]
    named = [key for key in keys if key in limits["waive"]]
    loose = [
        f"{key}, by a limit of {limits[key]:g} instead of {default:g}"
        for key in keys
        if limits[key] > (default := Limits.model_fields[key].default)
    ]
    told = [*(f"{key}, by limits.waive" for key in named), *loose]
    return replace(gate, waived="; ".join(told), decides=not named)
