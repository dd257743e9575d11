"""The notebook runs from its first cell to its last and draws what the report draws."""

import json
import os

import numpy as np
import pytest

from analysis.data.load import load
from analysis.figures import rounds, style
from tests.analysis.build import ResultsBuilder
from tests.cli.test_verbs import python
from tests.examples.places import EXAMPLES

_NOTEBOOK = EXAMPLES / "results.ipynb"
_DRAWN = """
import json
lines = {line.get_label(): line.get_data() for line in axes.lines}
lines = {name: [list(map(float, each)) for each in data] for name, data in lines.items()}
print(json.dumps({"drawn": lines, "ratios": dict(slower.select("arm", "ratio").iter_rows())}))
"""


def test_the_notebook_draws_the_lines_of_the_report_s_figure(tmp_path):
    build = ResultsBuilder(tmp_path, arms=["dblp", "tcp-cubic"])
    for seed in (1, 2):
        build.run(arm="dblp", seed=seed, burst_s=0.4 + seed / 10)
        build.run(arm="tcp-cubic", seed=seed, burst_s=1.0 + seed, calm_s=0.2)
    cells = json.loads(_NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    script = tmp_path / "cells.py"
    script.write_text("\n\n".join([*code, _DRAWN]), encoding="utf-8")
    places = {"LAB_RESULTS": str(tmp_path), "MPLBACKEND": "agg"}
    done = python(script, env=os.environ | places, timeout=None)
    assert done.returncode == 0, done.stderr
    drawing = json.loads(done.stdout.splitlines()[-1])

    results = load(tmp_path)
    styles = style.arm_styles(results.arms)
    figure = rounds.over_rounds(results.frame("latencies"), styles, {})
    assert figure is not None
    lines = [np.asarray(line.get_xydata()) for line in figure.axes[0].lines]
    lines = [line for line in lines if len(line) == 10]  # not those of the legend
    assert len(lines) == len(drawing["drawn"]) == 2
    unit = 1000 if "(ms)" in figure.axes[0].get_ylabel() else 1
    for line, (x, y) in zip(lines, drawing["drawn"].values(), strict=True):
        assert line[:, 0].tolist() == x
        assert line[:, 1] == pytest.approx([unit * value for value in y])
    assert drawing["ratios"] == pytest.approx({"dblp": 5.5, "tcp-cubic": 12.5})
