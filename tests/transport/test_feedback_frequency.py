"""How often a congestion control hears feedback under each repair, as its page says."""

from __future__ import annotations

import re
from pathlib import Path

from testbed.transport import PayloadLayout
from testbed.transport.core.congestion import Feedback
from testbed.transport.policies.congestion import CongestionControl, FixedRate, Reno
from testbed.transport.policies.repair import REPAIRS
from tests.transport.virtual import Network, Outcome, bernoulli, random_payload, transfer

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/congestion-control.md"
CONTROLS = {"a rate alone (`fixed`)": "rate", "a window (`reno`)": "window"}
LOSSES = (0.0, 0.1, 0.5)
LAYOUT = PayloadLayout([("weights", 139 * 364)], 1456)


def one_transfer(repair: str, kind: str, loss: float) -> tuple[list[Feedback], Outcome]:
    control: CongestionControl = (
        FixedRate(rate_bps=97e6) if kind == "rate" else Reno(datagram_bytes=1514)
    )
    heard: list[Feedback] = []
    hear = control.on_feedback

    def on_feedback(feedback: Feedback) -> None:
        heard.append(feedback)
        hear(feedback)

    control.on_feedback = on_feedback  # type: ignore[method-assign]
    network = Network(
        survives=bernoulli(loss, 1), rate_bps=100e6, queue_bytes=150_000, delay_s=0.005
    )
    outcome = transfer(
        random_payload(LAYOUT),
        LAYOUT,
        network=network,
        congestion=control,
        repair=REPAIRS.create(repair),
    )
    return heard, outcome


def test_the_page_s_table_is_what_happens():
    rows = [
        f"| `{repair}` | {words} | "
        + " | ".join(str(len(one_transfer(repair, kind, loss)[0])) for loss in LOSSES)
        + " |"
        for repair in ("passes", "selective", "streaming")
        for words, kind in CONTROLS.items()
    ]
    _, _, shown = PAGE.read_text(encoding="utf-8").partition("<!-- feedback:")
    table = [line for line in shown.splitlines() if re.match(r"\| `", line)]
    assert table == rows, "\n" + "\n".join(rows)
