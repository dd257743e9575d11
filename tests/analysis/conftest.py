"""Fixtures of the analysis' tests."""

from __future__ import annotations

import pytest

from analysis import figures


@pytest.fixture
def undrawn(monkeypatch):
    """Reports without figures, for tests that look at something else: drawing takes seconds."""
    monkeypatch.setattr(figures, "draw_all", lambda *_: [])
