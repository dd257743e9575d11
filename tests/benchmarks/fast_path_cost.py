"""It measures the cost to code, compose, place, seal and open: C beside numpy, in one run.

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
from testbed.transport.messages import KEY_BYTES, Cipher
from testbed.transport.native.fast_path import FAST_PATH, WHY_NONE
from testbed.transport.net.tls import TAG_BYTES, aes, authentication
from testbed.transport.wire import new_frames

PAYLOAD_BYTES = 20_000_000
BATCH = 44
TURNS = 7
SIZES = (1440, 8900, 32000)  # of chunks that are sealed


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
        placement.take(frames[: len(chunks)])
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
        for path, used, turns in (("compiled", library, TURNS), ("numpy", None, 1)):
            if path == "numpy" or library is not None:
                codec.LIBRARY = used
                copy, *costs = (
                    statistics.median(x) for x in zip(*of_codec(name, values, turns), strict=True)
                )
                shown = ", ".join(
                    f"{what} {cost:5.2f} ({cost / copy:4.1f})"
                    for what, cost in zip(("write", "read", "write + residual"), costs, strict=True)
                )
                print(f"{path:8} {name:8} {shown} CPU-s per GB of float32 (times memcpy)")
    codec.LIBRARY = library


def seal(cipher: Cipher, chunk_bytes: int) -> tuple[float, float]:
    """Processor seconds per gigabyte of sealing and of opening, of as many as one send takes."""
    ours, theirs = (
        authentication(bytes(KEY_BYTES), is_server=is_server, cipher=cipher)
        for is_server in (True, False)
    )
    batch = min(BATCH, 65507 // (chunk_bytes + 32))
    frames = new_frames(batch, chunk_bytes, tag_bytes=TAG_BYTES)
    calls = PAYLOAD_BYTES // (batch * chunk_bytes)
    sealing_s = opening_s = 0.0
    for _ in range(calls):
        began_s = time.process_time()
        rows = ours.seal(frames)
        sealed_s = time.process_time()
        assert len(theirs.open(rows)) == batch
        opening_s += time.process_time() - sealed_s
        sealing_s += sealed_s - began_s
    sealed_bytes = calls * batch * chunk_bytes
    return sealing_s / sealed_bytes * 1e9, opening_s / sealed_bytes * 1e9


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
        show(f"{name:8} {order:8}", ("compose", "place"), cost)
    ciphers = [Cipher.BLAKE2B, *([] if aes() is None else [Cipher.AES_256_GCM])]
    sealing = defaultdict(list)
    for _ in range(TURNS):
        for chunk_bytes in SIZES:
            for cipher in ciphers:
                sealing[cipher.name, chunk_bytes].append(seal(cipher, chunk_bytes))
    for (name, chunk_bytes), cost in sealing.items():
        show(f"{name:11} {chunk_bytes:5}", ("seal", "open"), cost)
    codecs()


def show(name: str, parts: tuple[str, str], cost: list[tuple[float, float]]) -> None:
    for what, values in zip(parts, zip(*cost, strict=True), strict=True):
        middle, least = statistics.median(values), min(values)
        print(f"{name} {what:7} {middle:5.2f} ({least:.2f}) CPU-s per GB")


if __name__ == "__main__":
    main()
