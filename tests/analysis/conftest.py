"""Fixtures of the analysis' tests."""

import pytest

from analysis.report import writing


@pytest.fixture
def undrawn(monkeypatch):
    """Reports without figures, for tests that look at something else: drawing takes seconds."""
    monkeypatch.setattr(writing, "draw_all", lambda *_: [])
