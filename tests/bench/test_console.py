"""What the benchmark prints, and what an interrupted one leaves."""

import json

import pytest

from testbed.bench.transport import console, measurement
from testbed.bench.transport.cases import Selection

MACHINE = {"cpu": "A", "cpus": 2, "kernel": "6", "compiled": True, "load_average": [0.5, 1, 2]}


def record(name="100M/x", *, completion_s=1.0, half=0.05, cpu=2.0, **others):
    interval = {"completion_low_s": completion_s - half, "completion_high_s": completion_s + half}
    sides: dict[str, float] = {}
    for side in ("sender", "receiver"):
        key = f"cpu_s_per_gb_{side}"
        sides |= {key: cpu, f"{key}_low": cpu * 0.9, f"{key}_high": cpu * 1.1}
        wire = f"cpu_s_per_gb_wire_{side}"
        sides |= {wire: cpu / 2, f"{wire}_low": cpu * 0.45, f"{wire}_high": cpu * 0.55}
    common = {"case": name, "status": "ok", "completion_s": completion_s, "machine": MACHINE}
    common |= {"rate_bps": 10**8, "n": 5}
    return common | interval | sides | others


@pytest.mark.parametrize("ends", [KeyboardInterrupt, measurement.BenchError])
def test_an_interrupted_run_keeps_what_was_measured_beside_the_file(
    ends, tmp_path, monkeypatch, capsys
):
    def measure(*_, **__):
        yield record("100M/loss-0%/P-0%/passes", status="timeout", limit_s=8.0)
        raise ends

    monkeypatch.setattr(measurement, "measure", measure)
    whole, partial = tmp_path / "x.json", tmp_path / "x.interrupted.json"
    whole.write_text("whole")
    with pytest.raises(ends):
        console.run(Selection(), json_file=whole)
    assert whole.read_text() == "whole"
    (kept,) = json.loads(partial.read_text())
    assert kept["case"] == "100M/loss-0%/P-0%/passes"
    _, *printed = capsys.readouterr().out.splitlines()  # the first says what it will do
    assert printed[0].startswith("case | completion | ")
    assert printed[1].endswith("not done in 8 s")
    assert printed[-1].startswith("records of 1 of ")
    assert printed[-1].endswith(f" cases: {partial}")


def test_a_wide_interval_is_named_and_a_few_scattered_values_are_shown_by_their_ends():
    shown = record(n=2, narrow=False, ratio_to_bound=1.0, goodput_bps=1e6, control_share=0.0)
    shown |= {"jain": None, "link_busy": None, "completion_min_s": 0.08, "completion_max_s": 0.09}
    assert "wide: an interval beyond 10%" in console.cells(shown)
    assert not [cell for cell in console.cells(shown | {"narrow": True}) if "wide" in cell]
    assert console.cells(shown)[2] == "min 80 ms, max 90 ms"
    assert console.cells(shown | {"n": 5})[2] == "950 ms..1.05 s"
    assert console.cells(shown | {"n": 3, "narrow": True})[2] == "950 ms..1.05 s"
