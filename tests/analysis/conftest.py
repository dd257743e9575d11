"""Fixtures of the analysis' tests."""

from __future__ import annotations

import pytest

from analysis.figures import catalogue


@pytest.fixture
def undrawn(monkeypatch):
    """Reports without figures, for tests that look at something else: drawing takes seconds."""
    monkeypatch.setattr(catalogue, "draw_all", lambda *_: [])
