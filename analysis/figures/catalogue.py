"""The catalogue of the report's figures: the function that draws each; `captions.csv` has words.

A figure's function takes frames or a summary. It returns None where there is nothing to draw.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from analysis.data.evidence import INVALID_INCLUDED, impairment_kinds, task
from analysis.data.load import Results
from analysis.figures import along_factor, rounds, style
from analysis.figures.style import render, too_many_for_bands, watermark

_STRIPS = (
    "The strips below mark critical phases; they are paler where a round was critical in some runs "
    "only."
)
_CAPTIONS = Path(__file__).with_name("captions.csv")


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A rendered figure and the words below it."""

    name: str
    title: str
    caption: str
    svg: str
    png: bytes


def draw_all(results: Results, summary: dict[str, Any]) -> list[Drawing]:
    """Every figure for which there are data, rendered; the same input gives the same bytes."""
    kinds: dict[str, str] = {}
    for run in results.ok_runs:
        kinds |= impairment_kinds(run.config)
    styles = style.arm_styles(results.arms)
    tasks = {run.key: task(run.config) for run in results.ok_runs}
    frame = results.frame
    makers: dict[str, Callable[[], Figure | None]] = {
        "latency-over-rounds": lambda: rounds.over_rounds(frame("latencies"), styles, kinds),
        "latency-cdf": lambda: rounds.distribution(frame("latencies"), styles),
        "critical-path": lambda: rounds.stacked(frame("critical_path"), results.arms),
        "loss-over-rounds": lambda: rounds.share(
            frame("gathered_loss"),
            styles,
            "loss",
            "Realised loss, gather (%)",
            (frame("latencies"), kinds),
        ),
        "ratio-along-factor": lambda: along_factor.ratios_along_factor(summary, styles),
        "{quality}-over-time": lambda: rounds.quality(
            frame("evaluations"), styles, "elapsed_s", tasks
        ),
        "{quality}-over-rounds": lambda: rounds.quality(
            frame("evaluations"), styles, "round", tasks
        ),
        "learning-along-factor": lambda: along_factor.learning_along_factor(summary, styles),
        "gradient-error": lambda: rounds.share(
            frame("deviations"),
            styles,
            "relative_error.applied",
            "Relative error of the\napplied gradient (%)",
        ),
        "divergence": lambda: rounds.share(
            frame("deviations"), styles, "divergence", "Divergence of replicas (%)"
        ),
    }
    words, drawings = _words(results, summary, set(tasks.values())), []
    with style.settings():
        for line in csv.DictReader(_CAPTIONS.read_text(encoding="utf-8").splitlines()):
            if (figure := makers[line["name"]]()) is not None:
                if results.invalid_included:
                    watermark(figure, INVALID_INCLUDED)
                svg, png = render(figure, "svg").decode(), render(figure, "png")
                texts = {
                    name: " ".join(text.format(**words).split()) for name, text in line.items()
                }
                drawings.append(Drawing(**texts, svg=svg, png=png))
    return drawings


def _words(results: Results, summary: dict[str, Any], tasks: set[str]) -> dict[str, str]:
    """What stands in captions for names in braces."""
    band = "A pale band spans lowest to highest run."
    has_panels = rounds.has_panels(results.frame("latencies"))
    programs = results.runs_programs
    return {
        "quality": summary.get("task_metric") or "accuracy",
        "band": band,
        "band_of_loss": "" if too_many_for_bands(results.arms) else band,
        "each_arm": "Each arm has a panel. " if has_panels else "",
        "apart": "Each task has a panel. " if len(tasks) > 1 else "",
        "of_round": "Each round as programs marked it" if programs else "Gather plus broadcast",
        "strips": "" if programs else _STRIPS,
    }
