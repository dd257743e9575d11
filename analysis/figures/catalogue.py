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
from analysis.figures.parts import render


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
    quality = summary.get("task_metric") or "accuracy"
    worse = "lower" if quality == "accuracy" else "higher"
    makers: list[tuple[str, str, str, Callable[[], Figure | None]]] = [
        (
            "latency-over-rounds",
            "Round latency over the rounds",
            "Gather plus broadcast, mean over the ok runs; the pale band spans lowest to highest. "
            "Look at the shaded rounds, where an impairment was active: the lower line rides "
            "through it faster. Outside them the lines show what tolerance alone saves. The strips "
            "below are dark where a round was in a critical phase, paler where only in some runs.",
            lambda: latency.over_rounds(results.rounds, styles, kinds),
        ),
        (
            "latency-cdf",
            "Distribution of round latency",
            "For each latency, the share of rounds (all ok runs together) that were at least as "
            "fast, calm rounds and rounds hit by an impairment apart. Further left is faster; look "
            "at how far the tail at the top reaches right.",
            lambda: latency.distribution(results.rounds, styles),
        ),
        (
            "latency-cdf-by-point",
            "Round latency in bursts, by point of the sweep",
            "As above, rounds hit by an impairment only, at each point alone (at most six).",
            lambda: latency.distribution_by_point(results.rounds, summary, styles),
        ),
        (
            "ratio-along-factor",
            "The headline ratio along the sweep",
            "Points are ratios of paired runs with 95 % intervals; above 1 the reference is "
            "faster. The bounds are what theory allows fixed-low/dblp if only bytes, or only "
            "passes, cost time: look between which of them the measured line runs.",
            lambda: ratios.along_factor(summary, styles),
        ),
        (
            f"{quality}-over-time",
            f"Test {quality} over training time",
            "Mean over workers and ok runs at each evaluation; the pale band spans lowest to "
            f"highest run. A line further left learns as well in less time; a {worse} end is what "
            "tolerated loss costs.",
            lambda: learning.quality(results.training, styles, "elapsed_s"),
        ),
        (
            f"{quality}-over-rounds",
            f"Test {quality} over the rounds",
            "The same without the clock: what is left between the lines is what loss does to "
            "learning.",
            lambda: learning.quality(results.training, styles, "round"),
        ),
        (
            "learning-along-factor",
            "What is learnt, and how fast, along the sweep",
            "Every arm's final test metric and mean round latency at each point, with 95 % "
            "intervals over seeds.",
            lambda: learning.along_factor(summary, styles),
        ),
        (
            "layer-loss",
            "Realised loss by layer",
            "The stronger a layer's colour, the more of it receivers went without, mean over "
            "all transfers; at the right the least and the most of any layer. Chunks sent in order "
            "lose the last layers, shuffled ones lose all layers alike.",
            lambda: learning.layer_strips(results.layer_loss, styles),
        ),
        (
            "gradient-error",
            "What loss does to the gradient",
            "L2 norm of (applied gradient - lossless mean) over that of the lossless mean, in the "
            "rounds that were measured; mean over workers and runs, the band spans the runs.",
            lambda: learning.gradient_error(results.effects, styles),
        ),
        (
            "divergence",
            "How far the replicas drift apart",
            "Root mean square distance of the workers' weights from their mean, over the mean's "
            "norm. It grows where each worker loses other parts of the broadcast.",
            lambda: learning.divergence(results.effects, styles),
        ),
        (
            "ratios",
            "Baseline over DBLP: ours beside the paper's",
            "Points are ours with their 95 % interval; grey bars and ticks are what the paper "
            "reports over its models and loss rates; diamonds are limits by arithmetic. Right of "
            "1 DBLP is faster.",
            lambda: ratios.beside_paper(summary),
        ),
    ]
    drawings = []
    with matplotlib.rc_context(style.RC):
        for name, title, caption, make in makers:
            figure = make()
            if figure is not None:
                drawings.append(
                    Drawing(
                        name=name,
                        title=title,
                        caption=caption,
                        svg=render(figure, "svg").decode(),
                        png=render(figure, "png"),
                    )
                )
    return drawings
