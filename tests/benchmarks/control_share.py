"""The share of control messages: `python -m tests.benchmarks.control_share [MB ...]` prints it.

Every repair moves payloads of these sizes (default: 29 and 244 MB, for `passes` also 4000) over
1 Gbit/s in virtual time, as fast as the receiver's buffer allows: the kernel's default one, and the
one that the endpoint asks for. In order and shuffled, at three rates of loss. The aim is under 1 %,
the TCP acknowledgements of the control messages included. `tests.transport.control_share` says how
that needs no memory for the payloads. It takes some minutes.
"""

from __future__ import annotations

import itertools
import sys

from testbed.transport.policies.order import InOrder, Shuffled
from testbed.transport.policies.repair import REPAIRS
from tests.transport.control_share import LARGE_BUFFER, SMALL_BUFFER, control_share

_LIMIT = 0.01


def main() -> None:
    asked_mb = [float(word) for word in sys.argv[1:]]
    print("repair         MB   buffer  loss  order     passes messages  control  with TCP's ACKs")
    worst = 0.0
    sizes = [
        (repair, size_mb)
        for repair in REPAIRS
        for size_mb in asked_mb or [29, 244, *([4000] if repair == "passes" else [])]
    ]
    for (repair, size_mb), buffer_bytes, loss, order in itertools.product(
        sizes, (SMALL_BUFFER, LARGE_BUFFER), (0.0, 0.1, 0.5), (InOrder(), Shuffled())
    ):
        share = control_share(
            int(size_mb * 1e6),
            REPAIRS.create(repair),
            buffer_bytes=buffer_bytes,
            loss=loss,
            order=order,
        )
        worst = max(worst, share.with_acknowledgements)
        kind = "shuffled" if isinstance(order, Shuffled) else "in-order"
        print(
            f"{repair:10} {size_mb:6g} {buffer_bytes:8} {loss:5} {kind:9} {share.passes or '-':>6} "
            f"{share.messages:8} {share.of_data:8.3%} {share.with_acknowledgements:8.3%}",
            flush=True,
        )
    print(f"most: {worst:.3%} (limit: {_LIMIT:.0%})")
    if worst > _LIMIT:
        sys.exit(1)


if __name__ == "__main__":
    main()
