"""A reservation of ports that the kernel does not keep is an error, and not taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.lab.kernel import socket_defaults
from testbed.lab.kernel.commands import CommandError


@pytest.mark.parametrize(
    ("path", "message"),
    [("/dev/null", "'' and not '47000-47999' are reserved"), ("/dev/nothing/here", "No such")],
)
def test_what_cannot_be_read_back_is_an_error(monkeypatch, path, message):
    monkeypatch.setattr(socket_defaults, "_RESERVED", Path(path))
    with pytest.raises(CommandError, match=message):
        socket_defaults.reserve_ports(None, 47000, 47999)
