"""It measures the cost to code, compose and place a payload: C beside numpy, in one run.

    python -m tests.benchmarks.fast_path_cost

No socket and no kernel: the payload's bytes move from one buffer to another through the memory of
one batch. Processor seconds per gigabyte of payload: the median of the turns and the least. For
codecs it is a gigabyte of float32, and beside it are times of what copying that takes (memcpy).
"""

import statistics
import time
from collections import defaultdict

import numpy as np

from testbed.transport import PayloadLayout, codec
from testbed.transport.codec import CODECS
from testbed.transport.fast_path import NUMPY, FastPath
from testbed.transport.native.fast_path import FAST_PATH, WHY_NONE
from testbed.transport.wire import new_frames

PAYLOAD_BYTES = 20_000_000
BATCH = 44
TURNS = 7


def one(path: FastPath, layout: PayloadLayout, order: np.ndarray) -> tuple[float, float]:
    """Processor seconds per gigabyte of composing and of placing."""
    frames = new_frames(BATCH, layout.chunk_bytes)
    source, target = (np.full_like(layout.new_buffer(), fill) for fill in (7, 1))
    composer = path.composer(
        session=1, transfer=1, layout=layout, rows=layout.rows(source), frames=frames
    )
    placement = path.placement(session=1, transfer=1, layout=layout, rows=layout.rows(target))
    composing_s = placing_s = 0.0
    for first in range(0, len(order), BATCH):
        chunks = order[first : first + BATCH]
        began_s = time.process_time()
        assert composer.compose(chunks, first, ask=0)
        composed_s = time.process_time()
        placement.take(frames[: len(chunks)], place=True)
        placing_s += time.process_time() - composed_s
        composing_s += composed_s - began_s
    assert (source == target)[: layout.payload_bytes].all()
    return composing_s / PAYLOAD_BYTES * 1e9, placing_s / PAYLOAD_BYTES * 1e9


def of_codec(name: str, values: np.ndarray, turns: int) -> list[tuple[float, ...]]:
    """Seconds per gigabyte of copying, writing, reading, and writing with a residual."""
    layout = PayloadLayout([("payload", len(values))], codec=name)
    buffer, lost, out = layout.new_buffer(), np.ones_like(values), np.ones_like(values)
    costs = []
    for turn in range(turns + 1):
        at_s = [time.process_time()]
        for step in (
            lambda: np.copyto(out, values),
            lambda: layout.write(values, buffer, seed=1, transfer=turn),  # noqa: B023
            lambda: layout.read(buffer, out),
            lambda: layout.write(values, buffer, seed=1, transfer=turn, residual=lost),  # noqa: B023
        ):
            step()
            at_s.append(time.process_time())
        costs.append(tuple(np.diff(at_s) / values.nbytes * 1e9))
    return costs[1:]  # the first touches fresh memory


def codecs() -> None:
    values = np.random.default_rng(1).standard_normal(PAYLOAD_BYTES, dtype=np.float32)
    library = codec.LIBRARY
    for name in CODECS:
        for path, found, turns in (("compiled", library, TURNS), ("numpy", None, 1)):
            if path == "numpy" or library is not None:
                codec.LIBRARY = found
                copy, *costs = (
                    statistics.median(x) for x in zip(*of_codec(name, values, turns), strict=True)
                )
                shown = ", ".join(
                    f"{what} {cost:5.2f} ({cost / copy:4.1f})"
                    for what, cost in zip(("write", "read", "write + residual"), costs, strict=True)
                )
                print(f"{path:8} {name:8} {shown} CPU-s per GB of float32 (times memcpy)")
    codec.LIBRARY = library


def main() -> None:
    layout = PayloadLayout([("payload", PAYLOAD_BYTES // 4)])
    paths = {"numpy": NUMPY}
    if FAST_PATH.compiled:
        paths["compiled"] = FAST_PATH
    else:
        print(f"no compiled fast path: {WHY_NONE}")
    chunks = np.arange(layout.chunk_count)
    orders = {"in order": chunks, "shuffled": np.random.default_rng(1).permutation(chunks)}
    costs = defaultdict(list)
    for _ in range(TURNS):
        for order in orders:
            for name, path in paths.items():
                costs[name, order].append(one(path, layout, orders[order]))
    for (name, order), cost in costs.items():
        for what, values in zip(("compose", "place"), zip(*cost, strict=True), strict=True):
            middle, least = statistics.median(values), min(values)
            print(f"{name:8} {order:8} {what:7} {middle:5.2f} ({least:.2f}) CPU-s per GB")
    codecs()


if __name__ == "__main__":
    main()
