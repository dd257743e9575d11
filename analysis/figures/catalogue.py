"""The catalogue of the report's figures: name, title, caption and the function that draws each.

A figure's function takes frames or a summary. It returns None where there is nothing to draw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from analysis.data.load import Results, impairment_kinds
from analysis.figures import latency, learning, ratios, style
from analysis.figures.parts import render, too_many_for_bands

_STRIPS = (
    "The strips below mark critical phases; they are paler where a round was critical in some runs "
    "only."
)


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
        kinds |= impairment_kinds(run.config.get("impairments"))
    styles = style.arm_styles(results.arms)
    band = "" if too_many_for_bands(results.arms) else "A pale band spans lowest to highest run."
    quality = summary.get("task_metric") or "accuracy"
    rounds, strips = "Gather plus broadcast", _STRIPS
    if results.runs_programs:
        rounds, strips = "Each round as programs marked it", ""
    makers: list[tuple[str, str, str, Callable[[], Figure | None]]] = [
        (
            "latency-over-rounds",
            "Round latency over the rounds",
            f"{rounds}, mean over the ok runs. {band} Shading marks the rounds in which an "
            f"impairment was active: compare the lines there with those in calm rounds. {strips}",
            lambda: latency.over_rounds(results.rounds, styles, kinds),
        ),
        (
            "latency-cdf",
            "Distribution of round latency",
            "For each latency, the share of rounds that were at least as fast (all ok runs "
            "together). Calm rounds and rounds hit by an impairment have a panel each. A curve "
            "further left is faster; its top shows how long the slowest rounds took.",
            lambda: latency.distribution(results.rounds, styles),
        ),
        (
            "latency-cdf-by-point",
            "Round latency in bursts, by point of the sweep",
            "The same for each point of the sweep (at most six), with only the rounds that an "
            "impairment hit.",
            lambda: latency.distribution_by_point(results.rounds, summary, styles),
        ),
        (
            "ratio-along-factor",
            "The headline ratio along the sweep",
            "Points are ratios of paired runs with 95 % intervals; above 1 the reference is "
            "faster. The two bounds are the ratio of fixed-low/dblp in theory: one if only bytes "
            "cost time, one if only passes do.",
            lambda: ratios.along_factor(summary, styles),
        ),
        (
            f"{quality}-over-time",
            f"Test {quality} over training time",
            f"Mean over workers and ok runs at each evaluation. {band} A line further left "
            f"reaches the same {quality} in less time.",
            lambda: learning.quality(results.training, styles, "elapsed_s"),
        ),
        (
            f"{quality}-over-rounds",
            f"Test {quality} over the rounds",
            "The same over rounds instead of time: the speed of the network plays no part here. "
            "Lines differ because of lost gradients, and by chance.",
            lambda: learning.quality(results.training, styles, "round"),
        ),
        (
            "learning-along-factor",
            "Final test metric and round latency along the sweep",
            "Every arm's final test metric and mean round latency at each point, with 95 % "
            "intervals over seeds.",
            lambda: learning.along_factor(summary, styles),
        ),
        (
            "layer-loss",
            "Realised loss by layer",
            "A stronger colour means that receivers went without more of the layer (mean over all "
            "transfers). The numbers on the right are the least and the most of any layer.",
            lambda: learning.layer_strips(results.layer_loss, styles),
        ),
        (
            "gradient-error",
            "What loss does to the gradient",
            "L2 norm of (applied gradient - lossless mean) over that of the lossless mean, in the "
            f"rounds that were measured. Mean over workers and runs. {band}",
            lambda: learning.gradient_error(results.effects, styles),
        ),
        (
            "divergence",
            "How far the replicas drift apart",
            "Root mean square distance of the workers' weights from their mean, over the mean's "
            f"norm. Replicas differ where workers lose different parts of the broadcast. {band}",
            lambda: learning.divergence(results.effects, styles),
        ),
        (
            "ratios",
            "Baseline over DBLP: ours beside the paper's",
            "Blue points are ours, with 95 % intervals. Grey bars and ticks are what the paper "
            "reports over its models and loss rates. Diamonds are limits by arithmetic. Right of "
            "1, DBLP is faster.",
            lambda: ratios.beside_paper(summary),
        ),
    ]
    drawings = []
    with matplotlib.rc_context(style.RC):
        for name, title, text, make in makers:
            if (figure := make()) is not None:
                svg, png = render(figure, "svg").decode(), render(figure, "png")
                caption = " ".join(text.split())
                drawings.append(Drawing(name=name, title=title, caption=caption, svg=svg, png=png))
    return drawings
