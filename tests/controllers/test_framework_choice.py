"""Ryu where it is installed, else os-ken; who asks for a missing one learns why it is missing."""

from __future__ import annotations

import pytest

from controllers import framework_choice
from testbed import experiment
from testbed.machine import capabilities
from testbed.shared.yaml_input import InputError

REASON = "error: metadata-generation-failed"


@pytest.fixture
def without_ryu(monkeypatch, tmp_path):
    monkeypatch.setitem(framework_choice.FRAMEWORKS, "ryu", "no_such_package")
    (tmp_path / "without-ryu").write_text(f"{REASON}\n", encoding="utf-8")
    monkeypatch.setattr(framework_choice, "_WITHOUT_RYU", tmp_path / "without-ryu")


def controllers(**options):
    return {run.config()["controller"] for run in experiment.load("quick", **options)}


@pytest.mark.skipif(not framework_choice.is_installed("ryu"), reason="Ryu cannot be had here")
def test_ryu_is_the_default_where_it_is_installed():
    assert controllers() == {"ryu"}
    assert controllers(controller="os-ken") == {"os-ken"}


@pytest.mark.usefixtures("without_ryu")
def test_elsewhere_os_ken_is_the_default_and_who_asks_for_ryu_learns_why_it_is_missing():
    assert framework_choice.preferred() == "os-ken"
    assert controllers() == {"os-ken"}
    with pytest.raises(InputError) as refused:
        experiment.load("quick", controller="ryu")
    assert str(refused.value).startswith("--controller ryu: ")
    assert str(refused.value).endswith(
        f"controller: 'ryu': is not installed here: {REASON}; valid here: os-ken"
    )
    with pytest.raises(ImportError, match=REASON):
        capabilities._framework("ryu")
    assert capabilities._framework("os-ken").endswith("runs by default")


def test_the_folder_that_an_uninstalled_package_left_is_no_framework(monkeypatch, tmp_path):
    (tmp_path / "left_over").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(framework_choice.FRAMEWORKS, "ryu", "left_over")
    assert not framework_choice.is_installed("ryu")
