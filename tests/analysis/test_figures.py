"""The figures, read from their artists, not from their pixels."""

from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from analysis.data.load import load
from analysis.figures import along_factor, rounds, style
from analysis.report import writing
from analysis.summary.document import summarise
from tests.analysis.build import ResultsBuilder, summary_of
from tests.analysis.test_sweep_points import FACTOR, sweep

STYLES = style.arm_styles(["dblp", "dblp-stream"])


def x_of(line) -> np.ndarray:
    return np.asarray(line.get_xdata(), dtype=float)


def y_of(line) -> np.ndarray:
    return np.asarray(line.get_ydata(), dtype=float)


@pytest.mark.parametrize(("arms", "panels"), [(4, 1), (5, 5)])
def test_many_arms_have_a_panel_each_where_they_would_hide_one_another(tmp_path, arms, panels):
    build = ResultsBuilder(tmp_path)
    names = [f"arm-{number}" for number in range(arms)]
    for seed in (1, 2):
        for number, name in enumerate(names):
            build.run(arm=name, seed=seed, calm_s=0.1 * seed * (number + 1))
    results = load(tmp_path)
    figure = rounds.over_rounds(results.frame("rounds"), style.arm_styles(names), {})
    assert figure is not None
    over = figure.axes
    assert len(over) == panels
    for axes in over:
        bands = [band for band in axes.collections if isinstance(band, PolyCollection)]
        assert len(bands) == len(axes.lines) == arms / panels
    highest = [max(y_of(line).max() for line in axes.lines) for axes in over]
    assert highest == sorted(highest)  # the slowest is the last
    assert {axes.get_ylim() for axes in over} == {over[0].get_ylim()}
    drawings = writing.draw_all(results, summarise(results))
    (caption,) = [drawing.caption for drawing in drawings if drawing.name == "latency-over-rounds"]
    assert "pale band" in caption
    assert ("Each arm has a panel" in caption) == (panels > 1)


def test_calm_rounds_and_burst_rounds_have_distributions_of_their_own(tmp_path):
    ResultsBuilder(tmp_path).run(arm="dblp", seed=1, calm_s=0.1, burst_s=1.0)
    figure = rounds.distribution(load(tmp_path).frame("rounds"), STYLES)
    assert figure is not None
    calm, burst = (x_of(axes.lines[0]) for axes in figure.axes)
    assert set(np.round(calm, 6)) == {0.1} and len(calm) == 9
    assert set(np.round(burst, 6)) == {1.0} and len(burst) == 3


def test_the_headline_ratio_is_joined_between_its_bounds_at_numbers_and_not_at_names(tmp_path):
    sweep(tmp_path, published=["D1"])
    summary = summary_of(tmp_path)

    def drawn() -> tuple[Axes, set[tuple[float, ...]], set[tuple[float, ...]]]:
        figure = along_factor.ratios_along_factor(summary, style.arm_styles(list(summary["arms"])))
        assert figure is not None
        (axes,) = figure.axes
        heights: dict[bool, set[tuple[float, ...]]] = {True: set(), False: set()}
        for line in axes.lines:
            if len(x_of(line)) == 2:
                heights[line.get_linestyle() != "None"].add(tuple(np.round(y_of(line), 3)))
        return axes, heights[True], heights[False]

    axes, joined, alone = drawn()
    assert {(2.0, 4.0), (1.676, 1.676), (5.286, 5.378)} <= joined and not alone
    assert axes.get_xlabel() == FACTOR.split(".")[-1]
    assert axes.get_ylim()[1] >= 5.97  # the paper's range is in sight
    two = {**summary, "compared": [*summary["compared"], ["dblp", "fixed-low"]]}
    assert along_factor.ratios_along_factor(two, STYLES) is None  # an axis has one reference
    for point, name in zip(summary["points"], ("star", "tree"), strict=True):
        point["factors"][FACTOR] = name
    _, joined, alone = drawn()
    assert alone == {(2.0, 4.0)}
    # A limit of each.
    assert {(5.286, 5.286), (5.378, 5.378)} <= joined and (5.286, 5.378) not in joined


LOSS = {"kind": "loss", "name": "loss-server", "rounds": [4], "q": 0.8}


def test_what_is_learnt_runs_along_a_factor_that_is_a_number(tmp_path):
    build = ResultsBuilder(tmp_path)
    for seed in (1, 2):
        for k in ("20", "40", "80"):
            learnt_by = {"fixed-low": (0.9, 0.4), "dblp": (1 - float(k) / 100, 0.1)}
            for arm, (accuracy, took_s) in learnt_by.items():
                times: dict[str, Any] = {"calm_s": took_s, "burst_s": took_s}
                build.run(arm=arm, seed=seed, factors={"k": k}, accuracy=accuracy, **times)
    results = load(tmp_path)
    summary = summarise(results)
    figure = along_factor.learning_along_factor(summary, style.arm_styles(results.arms))
    assert figure is not None
    learnt, latency = figure.axes
    for axes, heights in (
        (learnt, {(90, 90, 90), (80, 60, 20)}),
        (latency, {(400, 400, 400), (100, 100, 100)}),
    ):
        curves = [line for line in axes.lines if len(x_of(line)) == 3]
        assert {tuple(np.round(y_of(line))) for line in curves} == heights
        assert {tuple(x_of(line)) for line in curves} == {(20, 40, 80)}
    assert latency.get_xlabel() == "k"
    two_points = {**summary, "points": summary["points"][:2]}
    assert along_factor.learning_along_factor(two_points, STYLES) is None


def test_without_a_sweep_or_a_measurement_there_is_no_such_figure(tmp_path):
    ResultsBuilder(tmp_path).run(arm="dblp", seed=1)
    results = load(tmp_path)
    summary = summarise(results)
    assert along_factor.ratios_along_factor(summary, STYLES) is None
    assert along_factor.learning_along_factor(summary, STYLES) is None
    for name in ("divergence", "relative_error.applied"):
        assert rounds.share(results.frame("deviations"), STYLES, name, "") is None


def test_a_report_with_measured_effects_has_all_of_their_figures(tmp_path):
    ResultsBuilder(tmp_path).run(arm="dblp", seed=1, layers=3, workers=2)
    results = load(tmp_path)
    summary = summarise(results)
    names = {drawing.name for drawing in writing.draw_all(results, summary)}
    assert {"gradient-error", "divergence", "accuracy-over-rounds"} <= names


def test_no_two_arms_of_a_large_comparison_look_alike():
    # congestion-controls compares eight arms that the registry does not name.
    names = [*style.ARMS, *(f"other-{number}" for number in range(10))]
    styles = list(style.arm_styles(names).values())
    assert len(set(styles)) == len(names)
    assert len({(arm_style.colour.name, arm_style.marker) for arm_style in styles}) == len(names)


LONG = "dblp@congestion_control=/home/someone/transport/my_control.py:Mine:gain=0.5,limit=20"


@pytest.mark.parametrize(
    "arm", ["tcp-cubic", "tcp-cubic@congestion_control=bbr", "d@" + "x" * 40, LONG]
)
def test_a_legend_has_room_for_its_longest_label(arm):
    arms = ["dblp", "fixed-low", "none", arm]
    with style.settings():
        figure, _ = style.new_panels(1)
        style.add_legend(figure, style.arm_styles(arms), set(arms), [])
        figure.canvas.draw()
    (legend,) = figure.legends
    assert legend.get_window_extent().x1 <= figure.bbox.x1
