"""Tests of training share these fixtures."""

import pytest


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty folder for what data sets keep, in place of the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "bounded-loss-testbed"
