"""One archive: a reader recomputes the tables from it, and the same folder gives the same bytes."""

import hashlib
import json
import zipfile

import pytest

from testbed.run import exporting
from testbed.shared import run_directory
from testbed.shared.input_error import InputError
from tests.analysis.build import ResultsBuilder


@pytest.fixture
def folder(tmp_path):
    build = ResultsBuilder(tmp_path / "runs", experiment="small")
    for seed in (1, 2):
        for arm, burst_s in (("dblp", 0.4), ("fixed-low", 0.6)):
            run = build.run(arm=arm, seed=seed, burst_s=burst_s + seed / 100)
            for name in ("samples/queues.parquet", "pcap/server.pcap", "logs/server.log"):
                (run / name).parent.mkdir(exist_ok=True)
                (run / name).write_bytes(b"bytes")
    own = tmp_path / "mine.py"
    own.write_text("x = 1\n")
    config = run_directory.read_json(run / "config.json")
    config["code"] = {str(own): hashlib.sha256(own.read_bytes()).hexdigest()}
    secret = tmp_path / "secret.txt"
    secret.write_text("of nobody's run")
    config["code"][str(secret)] = "../../../x"  # somebody else's results may name any file
    run_directory.write_json(run / "config.json", config)
    return build.folder


def test_a_reader_recomputes_the_tables(folder, tmp_path, monkeypatch, in_process):
    monkeypatch.chdir(tmp_path)
    words = ("report", "small", "--out", folder.parent, "--format", "zip", "-o", "small.zip")
    status, out, err = in_process(*words)
    assert status == 0, err
    assert "archive: small.zip, " in out
    read = tmp_path / "read"
    with zipfile.ZipFile(tmp_path / "small.zip") as archive:
        archive.extractall(read)

    sums = dict(line.split("  ")[::-1] for line in (read / "SHA256SUMS").read_text().splitlines())
    files = {str(path.relative_to(read)) for path in read.rglob("*") if path.is_file()}
    assert files - sums.keys() == {"SHA256SUMS"}
    for name, digest in sums.items():
        assert hashlib.sha256((read / name).read_bytes()).hexdigest() == digest

    status, _, err = in_process("report", read / "results" / "small")
    assert status == 0, err
    for name in ("main.csv", "ratios.csv", "summary.json"):
        expected, recomputed = (
            read / "expected" / name,
            read / "results" / "small" / "report" / name,
        )
        assert recomputed.read_bytes() == expected.read_bytes()
    assert json.loads(expected.read_text())["verdicts"]["ok"] == 4

    readme = (read / "README.md").read_text()
    assert "4 run directories: 4 ok." in readme
    assert "lab/lab report results/small" in readme
    assert (read / "CITATION.cff").is_file()
    assert "numpy==" in (read / "environment" / "packages.txt").read_text()
    assert "torch==" in (read / "environment" / "pyproject.toml").read_text()
    assert [path.read_text() for path in read.glob("code/*/mine.py")] == ["x = 1\n"]
    left_out = {file for file in files if "/samples/" in file or "/pcap/" in file}
    assert left_out == set()
    assert any(file.endswith("logs/server.log") for file in files)


def test_links_to_files_elsewhere_are_left_out(folder, tmp_path):
    (tmp_path / "secret.json").write_text("{}")
    (folder / "report").mkdir(exist_ok=True)
    (folder / "report" / "extra.json").symlink_to(tmp_path / "secret.json")
    exporting.export(folder, tmp_path / "x.zip")
    assert not any("extra" in name for name in zipfile.ZipFile(tmp_path / "x.zip").namelist())


def test_the_same_folder_gives_the_same_bytes(folder, tmp_path):
    for name in ("one.zip", "two.zip"):
        exporting.export(folder, tmp_path / name)
        for path in folder.rglob("*"):
            path.touch()  # when files were written is not stored
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()


def test_what_cannot_be_packed_is_one_line_and_leaves_nothing(folder, tmp_path):
    taken = tmp_path / "taken.zip"
    taken.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        exporting.export(folder, taken)
    with pytest.raises(InputError, match="no experiment was planned"):
        exporting.export(tmp_path, tmp_path / "x.zip")
    running = folder / "dblp-s9.partial"
    running.mkdir()
    with run_directory._locked(running), pytest.raises(InputError, match="going on"):
        exporting.export(folder, tmp_path / "x.zip")
    assert taken.read_text() == "mine"
    assert not (tmp_path / "x.zip").exists()


def test_the_main_table_is_written_in_a_form_that_there_is(folder, tmp_path, in_process):
    words = ("report", "small", "--out", folder.parent, "--format")
    status, out, _ = in_process(*words, "latex", "-o", tmp_path / "main.tex")
    assert (status, out) == (0, f"table: {tmp_path / 'main.tex'}\n")
    assert (tmp_path / "main.tex").read_text() == (folder / "report" / "main.tex").read_text()
    status, _, err = in_process(*words, "xlsx")
    assert (status, err) == (2, "lab: --format xlsx: valid: csv, latex, zip\n")
