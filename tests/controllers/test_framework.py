"""Ryu where it is installed, else os-ken; neither survives an exception in one of its threads."""

from __future__ import annotations

import pytest

from controllers import framework_choice
from testbed import experiment
from testbed.machine import capabilities
from testbed.shared.yaml_input import InputError
from tests.cli.test_verbs import python

REASON = "error: metadata-generation-failed"


def controllers(**options):
    return {run.config()["controller"] for run in experiment.load("quick", **options)}


@pytest.mark.skipif(not framework_choice.is_installed("ryu"), reason="Ryu cannot be had here")
def test_ryu_is_the_default_where_it_is_installed():
    assert controllers() == {"ryu"}
    assert controllers(controller="os-ken") == {"os-ken"}


def test_elsewhere_os_ken_is_the_default_and_who_asks_for_ryu_learns_why_it_is_missing(
    monkeypatch, tmp_path
):
    monkeypatch.setitem(framework_choice.FRAMEWORKS, "ryu", "no_such_package")
    (tmp_path / "without-ryu").write_text(f"{REASON}\n", encoding="utf-8")
    monkeypatch.setattr(framework_choice, "_WITHOUT_RYU", tmp_path / "without-ryu")
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


FAILING = {
    "thread": "hub.spawn(boom); hub.sleep(5)",
    "later": "hub.spawn_after(0.01, boom); hub.sleep(5)",
    # An event loop catches what a handler raises; the program below does the same.
    "handler": "set_ev_cls(Event)(boom)(None)",
}
PROGRAM = """
import os
os.environ["LAB_CONTROLLER_FRAMEWORK"] = {framework!r}
from controllers.framework import hub, set_ev_cls

class Event:
    pass

def boom(*_):
    raise LookupError("the timeline broke")

try:
    {failing}
except LookupError:
    pass
print("still alive")
"""


@pytest.mark.parametrize(
    ("framework", "place"), [*(("os-ken", place) for place in FAILING), ("ryu", "thread")]
)
def test_an_exception_ends_the_controller(framework, place):
    program = PROGRAM.format(framework=framework, failing=FAILING[place])
    done = python("-c", program, timeout=100)
    assert done.returncode == 1, done
    assert "LookupError: the timeline broke" in done.stderr
    assert "still alive" not in done.stdout
