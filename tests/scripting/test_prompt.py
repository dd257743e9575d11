"""The prompt of a lab, without the lab."""

from types import SimpleNamespace
from typing import Any

import pytest

from testbed.scripting.prompt import Prompt
from testbed.shared.input_error import InputError
from tests.verdict.evidence_of_gates import LINK


def test_a_link_has_two_names_by_either_order_of_its_ends(monkeypatch):
    prompt: Any = Prompt.__new__(Prompt)
    prompt._lab = SimpleNamespace(info=SimpleNamespace(links=[LINK]))
    shown: list[Any] = []
    monkeypatch.setattr(prompt, "_show_links", shown.append)
    first, second = LINK.first.node, LINK.second.node
    for name in (f"{first}--{second}", f"{second}--{first}"):
        prompt.do_set(name)
    assert shown == [[LINK], [LINK]]
    with pytest.raises(InputError, match="no link 'nowhere'"):
        prompt.do_set("nowhere")
