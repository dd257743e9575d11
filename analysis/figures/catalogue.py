"""The catalogue of the report's figures: name, title, caption and the function that draws each.

A figure's function takes frames or a summary. It returns None where there is nothing to draw.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib.image
import numpy as np
from matplotlib.figure import Figure

from analysis.data import learning as of_config
from analysis.data.evidence import INVALID_INCLUDED, impairment_kinds
from analysis.data.load import Results
from analysis.figures import critical_path, latency, learning, ratios, style
from analysis.figures.parts import render, too_many_for_bands, watermark

_STRIPS = (
    "The strips below mark critical phases; they are paler where a round was critical in some runs "
    "only."
)
_SHADES = 0.02  # of 1; six digits of a number are kept, and lines are drawn a little elsewhere


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A rendered figure and the words below it."""

    name: str
    title: str
    caption: str
    svg: str
    png: bytes


def of_summary(summary: dict[str, Any]) -> dict[str, bytes]:
    """The figures that a summary alone gives, as PNG by name; those without data are left out."""
    styles = style.arm_styles(list(summary["arms"]))
    makers = {
        "ratio-along-factor": ratios.along_factor,
        "learning-along-factor": learning.along_factor,
    }
    with style.settings():
        figures = {name: make(summary, styles) for name, make in makers.items()}
        return {name: render(each, "png") for name, each in figures.items() if each is not None}


def look_alike(one: bytes, two: bytes) -> bool:
    """Whether two PNG files show the same picture, but for the rounding of shades."""
    first, second = (matplotlib.image.imread(io.BytesIO(each), format="png") for each in (one, two))
    return first.shape == second.shape and bool(np.abs(first - second).max() < _SHADES)


def draw_all(results: Results, summary: dict[str, Any]) -> list[Drawing]:
    """Every figure for which there are data, rendered; the same input gives the same bytes."""
    kinds: dict[str, str] = {}
    for run in results.ok_runs:
        kinds |= impairment_kinds(run.config.get("impairments"))
    styles = style.arm_styles(results.arms)
    band = "A pale band spans lowest to highest run."
    band_of_loss = "" if too_many_for_bands(results.arms) else band
    each_arm = "Each arm has a panel. " if latency.has_panels(results.latencies) else ""
    quality = summary.get("task_metric") or "accuracy"
    tasks = {run.key: of_config.task(run.config) for run in results.ok_runs}
    apart = "Each task has a panel. " if len(set(tasks.values())) > 1 else ""
    rounds, strips = "Gather plus broadcast", _STRIPS
    if results.runs_programs:
        rounds, strips = "Each round as programs marked it", ""
    makers: list[tuple[str, str, str, Callable[[], Figure | None]]] = [
        (
            "latency-over-rounds",
            "Round latency over the rounds",
            f"{rounds}, mean over the ok runs. {each_arm}{band} Shading marks the rounds in which "
            "an impairment was active: compare the lines there with those in calm rounds. "
            f"{strips}",
            lambda: latency.over_rounds(results.latencies, styles, kinds),
        ),
        (
            "latency-cdf",
            "Distribution of round latency",
            "For each latency, the share of rounds that were at least as fast (all ok runs "
            "together). Calm rounds and rounds hit by an impairment have a panel each. A curve "
            "further left is faster; its top shows how long the slowest rounds took.",
            lambda: latency.distribution(results.latencies, styles),
        ),
        (
            "critical-path",
            "Who cost the rounds",
            "What the mean round's time went into, along the worker that was waited for in each "
            "step (all ok runs of a point together, at most six points). Transfer is what a leg "
            "takes in calm rounds, repair is sending again, and delay what a leg took beyond: "
            "queues, lower rates, time-outs. The tables below name workers and impairments.",
            lambda: critical_path.stacked(results.critical_path, results.arms),
        ),
        (
            "loss-over-rounds",
            "Realised loss over the rounds",
            "Share of the gathered chunks that receivers went without, of all transfers in a "
            f"round, mean over the ok runs. {band_of_loss} Shading marks the rounds in which an "
            "impairment was active.",
            lambda: learning.loss_over_rounds(
                results.gathered_loss, results.latencies, styles, kinds
            ),
        ),
        (
            "ratio-along-factor",
            "The headline ratio along the sweep",
            "Points are ratios of paired runs with 95 % intervals; above 1 the reference is "
            "faster. Where an impairment hit rounds, they are of these rounds: of the gather "
            "alone if it was logged. Byte bound and pass limit are the gather's ratio of "
            "fixed-low/dblp in theory: one if only bytes cost time, one if only passes do "
            "(expected).",
            lambda: ratios.along_factor(summary, styles),
        ),
        (
            f"{quality}-over-time",
            f"Test {quality} over training time",
            f"Mean over workers and ok runs at each evaluation. {apart}{band} A line further left "
            f"reaches the same {quality} in less time.",
            lambda: learning.quality(results.evaluations, styles, "elapsed_s", tasks),
        ),
        (
            f"{quality}-over-rounds",
            f"Test {quality} over the rounds",
            "The same over rounds instead of time: the speed of the network plays no part here. "
            "Lines differ because of lost gradients, and by chance.",
            lambda: learning.quality(results.evaluations, styles, "round", tasks),
        ),
        (
            "learning-along-factor",
            "Final test metric and round latency along the sweep",
            "Every arm's final test metric and mean round latency at each point, with 95 % "
            "intervals over seeds.",
            lambda: learning.along_factor(summary, styles),
        ),
        (
            "gradient-error",
            "What loss does to the gradient",
            "L2 norm of (applied gradient - lossless mean) over that of the lossless mean, in the "
            f"rounds that were measured. Mean over workers and runs. {band}",
            lambda: learning.deviation(
                results.deviations,
                styles,
                "relative_error.applied",
                "Relative error of the\napplied gradient (%)",
            ),
        ),
        (
            "divergence",
            "How far the replicas drift apart",
            "Root mean square distance of the workers' weights from their mean, over the mean's "
            f"norm. Replicas differ where workers lose different parts of the broadcast. {band}",
            lambda: learning.deviation(
                results.deviations, styles, "divergence", "Divergence of replicas (%)"
            ),
        ),
    ]
    drawings = []
    with style.settings():
        for name, title, text, make in makers:
            if (figure := make()) is not None:
                if results.invalid_included:
                    watermark(figure, INVALID_INCLUDED)
                svg, png = render(figure, "svg").decode(), render(figure, "png")
                caption = " ".join(text.split())
                drawings.append(Drawing(name=name, title=title, caption=caption, svg=svg, png=png))
    return drawings
