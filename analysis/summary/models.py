"""Tells of which models a published value and ours beside it are, where these are not the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from analysis.data import learning, published
from analysis.data.evidence import Run
from analysis.data.records import section

_PAYLOAD = "payload of "  # nothing is learnt: only the payload's layers are the model's


def of_runs(runs: Iterable[Run]) -> list[str]:
    """What some runs trained, or whose payload they sent; nothing of programs."""
    return _distinct(
        (section(run.config, "training").get("model"), learning.pace(run.config)["kind"])
        for run in runs
    )


def differing(entries: Sequence[Mapping[str, Any]], beside: str) -> tuple[str, str]:
    """The paper's model and ours, in words; two empty texts where they are the same."""
    paper = entries[0]["model"]
    ours = list(dict.fromkeys(name for each in entries for name in each["our_model"]))
    names = published.load_models()
    if paper == [published.ANY_MODEL] or (ours and {names.get(n, n) for n in paper} == set(ours)):
        return "", ""
    told = "model not stated" if paper == [published.NOT_STATED] else _listed(paper)
    if all(name in beside for name in paper):
        told = ""
    if all(name.startswith(_PAYLOAD) for name in ours):
        return told, _PAYLOAD * bool(ours) + _listed([n.removeprefix(_PAYLOAD) for n in ours])
    return told, _listed(ours)


def _listed(names: Sequence[str]) -> str:
    *others, last = names or [""]
    return f"{', '.join(others)} and {last}" if others else last


def _distinct(models: Iterable[tuple[Any, str]]) -> list[str]:
    named = (
        f"{_PAYLOAD if pace == 'payload-only' else ''}{model}" for model, pace in models if model
    )
    return list(dict.fromkeys(named))
