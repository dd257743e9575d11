"""README's tables are written from kept results, by one command, and nothing else of it changes."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from analysis.report import kept_results
from analysis.statistics import Estimate
from analysis.tables.claims import claims_table
from testbed.cli.verbs import app
from testbed.shared.yaml_input import InputError
from tests.analysis.build import ResultsBuilder, edited
from tests.analysis.test_report import three_arms
from tests.analysis.test_sweep_points import sweep

README = "# Title\n\n<!-- quick: begin -->\nold | table\n<!-- quick: end -->\n\nrest\n"
CLAIMS = "<!-- claims: begin -->\nold\n<!-- claims: end -->\n"


def root(folder: Path, text: str = README) -> Path:
    (folder / "experiments" / "results").mkdir(parents=True)
    (folder / "README.md").write_text(text)
    return folder


def test_kept_results_fill_the_place_that_readme_has_for_them(tmp_path):
    three_arms(tmp_path / "runs")
    place = root(tmp_path / "project")
    folder = kept_results.keep(tmp_path / "runs", root=place)
    assert kept_results.write_readme(root=place) == ["quick"]
    text = (place / "README.md").read_text()
    head = "# Title\n\n<!-- quick: begin -->\n|  | dblp | fixed-low | tcp-cubic |\n"
    assert text.startswith(head) and text.endswith("<!-- quick: end -->\n\nrest\n")
    assert "old | table" not in text
    assert "| Round latency, burst rounds (s) | 0.200 (0.180, 0.220) | 1.00" in text
    assert "n = 2 seeds, the seeds' values: too few" in text
    assert "| Round latency, burst rounds | 5.00 x" in text
    assert "`./lab run quick` on " in text and "Test CPU" in text
    assert {path.name for path in folder.iterdir()} == {
        *(
            "experiment.json",
            "plan.jsonl",
            "attempts.csv",
            "gates.csv",
            "rows.csv",
            "rounds.parquet",
        ),
        *("summary.json", "manifest.json", "provenance.json", "main.md"),
        "latency-over-rounds.png",
    }
    kept_results.write_readme(root=place)  # once more
    assert (place / "README.md").read_text() == text
    with edited(folder / "summary.json") as summary:  # from this, and not from the runs
        summary["arms"]["dblp"]["training_time_s"]["value"] = 123.0
    assert "| 123 " in kept_results.block(folder)


def test_kept_results_are_small_and_enough_for_a_sweep(tmp_path):
    sweep(tmp_path / "runs", seeds=5)
    place = root(tmp_path / "project")
    folder = kept_results.keep(tmp_path / "runs", root=place)
    text = kept_results.block(folder)
    assert "| q = 0.9 | 4.00 (4.00" in text
    assert "Runs: 20 ok." in text
    (kept,) = kept_results.kept_for_claims(place / "experiments" / "results")
    row = next(row for row in claims_table([kept]).rows if row[0].text.startswith("D1:"))
    assert row[4].text == "contradicted at 1 of 2, holds on our tasks only at 1 of 2"
    assert (folder / "ratio-along-factor.png").is_file()
    assert sum(path.stat().st_size for path in folder.glob("*.json")) < 60_000


def simulated(folder: Path) -> None:
    for path in folder.glob("*/*/manifest.json"):
        with edited(path) as manifest:
            manifest["simulated"] = True


def test_simulated_results_are_called_so_and_measured_ones_do_not_replace_them(tmp_path, undrawn):
    for name in ("runs", "measured"):
        three_arms(tmp_path / name)
    simulated(tmp_path / "runs")
    place = root(tmp_path / "project", README + "<!-- kept: begin -->\n<!-- kept: end -->\n")
    folder = kept_results.keep(tmp_path / "runs", root=place)
    kept_results.write_readme(root=place)
    text = (place / "README.md").read_text()
    assert "| quick (simulated) | 2 | 6 |" in text and " Simulated. " in text
    # And from the rows alone.
    provenance = (folder / "provenance.json").read_text()
    kept_results.write_derived(folder)
    assert (folder / "provenance.json").read_text() == provenance
    before = (folder / "rows.csv").read_bytes()
    with pytest.raises(ValueError, match="of quick there are simulated runs and measured ones"):
        kept_results.keep(tmp_path / "measured", root=place)
    assert (folder / "rows.csv").read_bytes() == before


def test_simulated_results_are_kept_beside_measured_ones_and_compared(tmp_path, undrawn):
    block = "<!-- quick-compared: begin -->\n<!-- quick-compared: end -->\n"
    place = root(tmp_path / "project", README + block)
    for name, calm_s in (("measured", 0.1), ("simulated", 0.09)):
        build = ResultsBuilder(tmp_path / name)
        for q in (0.9, 0.6):
            for arm, slower in (("dblp", 1), ("fixed-low", 2)):
                for seed in range(1, 6):
                    times: dict[str, Any] = {"calm_s": calm_s * slower, "burst_s": slower}
                    build.run(arm=arm, seed=seed, factors={"q": q}, **times)
    simulated(tmp_path / "simulated")
    measured = kept_results.keep(tmp_path / "measured", root=place)
    before = (measured / "rows.csv").read_bytes()
    folder = kept_results.keep(tmp_path / "simulated", root=place)
    assert folder.name == "quick-simulated" and (measured / "rows.csv").read_bytes() == before
    kept_results.write_readme(root=place)
    lines = (place / "README.md").read_text().partition(block.splitlines()[0])[2].splitlines()
    first = [line.split(" | ")[0].strip("| ") for line in lines if line.startswith("| 0.")]
    assert first == ["0.9: dblp", "0.9: fixed-low", "0.6: dblp", "0.6: fixed-low"]
    assert "| 0.9: dblp | 0.900 (0.900\u20130.900) | 1.00 (1.00\u20131.00) |" in lines[3]


def test_results_without_an_ok_run_are_not_kept(tmp_path):
    ResultsBuilder(tmp_path / "runs").run(arm="dblp", seed=1, verdict="failed", reason="it broke")
    place = root(tmp_path / "project")
    with pytest.raises(ValueError, match="no ok run of quick"):
        kept_results.keep(tmp_path / "runs", root=place)
    assert not (place / "experiments" / "results" / "quick").exists()
    assert kept_results.write_readme(root=place) == []
    assert (place / "README.md").read_text() == README


@pytest.mark.parametrize(
    ("name", "readme", "summary", "message"),
    [
        ("quick", "<!-- quick: begin -->\nrest\n", None, "needs one <!-- quick: end -->"),
        ("burst-latency", CLAIMS, "{", "burst-latency/summary.json: .*keep these results again"),
    ],
    ids=["no end", "damaged"],
)
def test_what_cannot_be_written_leaves_readme_as_before(
    tmp_path, undrawn, name, readme, summary, message
):
    sweep(tmp_path / "runs", seeds=2)
    place = root(tmp_path / "project", readme)
    folder = kept_results.keep(tmp_path / "runs", root=place)
    folder = folder.rename(folder.with_name(name))
    if summary is not None:
        (folder / "summary.json").write_text(summary)
    with pytest.raises(ValueError, match=message):
        kept_results.write_readme(root=place)
    assert (place / "README.md").read_text() == readme


def test_the_report_command_keeps_and_writes(tmp_path, undrawn, monkeypatch):
    three_arms(tmp_path / "runs")
    place = root(tmp_path / "project")
    monkeypatch.setattr(kept_results, "ROOT", place)
    done = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "--readme"])
    assert done.exit_code == 0, done.output
    assert f"kept: {place / 'experiments' / 'results' / 'quick'}" in done.output.replace("\n", "")
    assert "n = 2 seeds" in (place / "README.md").read_text()
    (place / "README.md").write_text("<!-- quick: begin -->\n")
    refused = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "--readme"])
    assert isinstance(refused.exception, InputError)


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        ((0.5, 0.9), "yes"),
        ((1.1, 1.2), "no, the opposite"),
        ((0.8, 1.25), "no difference shown (25 % would show)"),
    ],
)
def test_an_answer_of_few_seeds_is_called_an_indication(values, answer):
    few = Estimate(value=1.0, values=values, n=2)
    text = kept_results._is_less(few, is_ratio=True)
    assert text == f"{answer} (an indication: few seeds)"
    difference = kept_results._is_less(Estimate(value=0, values=(-0.01, 0.02), n=2), is_ratio=False)
    assert difference.startswith("no difference shown (1.50 points would")
