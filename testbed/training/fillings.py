"""Fillings: what replaces gradients that did not arrive?

To add one: a class here and a line in `FILLINGS`; or a file of your own, `filling: ./mine.py`.
"""

import functools
from dataclasses import dataclass

import numpy as np

from testbed.shared.registry import Registry
from testbed.training.filling import (
    Buffer,
    Buffers,
    Filling,
    Mask,
    Masks,
    SenderMemory,
    Vector,
    all_finite,
    chunk_elements,
    mean_into,
    sum_into,
    zero_missing,
)
from testbed.transport import PayloadLayout, TransferReport

# Fillings without a memory.


class Unread(Filling):
    """For payloads that nobody computes with."""

    def estimate_mean(
        self, layout: PayloadLayout, buffers: Buffers, received: Masks, out: Buffer
    ) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Zero(Filling):
    """Fills with zeros, as DBLP does: no rescaling, no memory."""

    def estimate_mean(
        self, layout: PayloadLayout, buffers: Buffers, received: Masks, out: Buffer
    ) -> None:
        zero_missing(layout, buffers, received)
        mean_into([layout.floats(buffer) for buffer in buffers], layout.floats(out))


@dataclass(frozen=True, kw_only=True)
class Rescale(Filling):
    """Scales up what arrived, so that its expectation is the mean of what was sent.

    Without loss it is the plain mean, bit for bit. Let g_w be the gradient of worker w, n the
    number of workers, and A_w(i) tell whether chunk i of w arrived. Each element's sum is divided
    by the number of workers that contributed to it (as arXiv 2507.07114 does), and by K/N, the
    share of the chunks to which any worker contributed:

        estimate(i) = (N / K) * sum_w A_w(i) g_w / c(i),  c(i) = sum_w A_w(i),  zero where c(i) = 0

    It is unbiased if (a) losses do not depend on a chunk's place and (b) no worker loses more than
    the others. Then chunk i is one of the K with probability K/N, and given c(i) the contributors
    are a uniform choice of workers, whose mean has the expectation mean(g). (a) holds with the
    order `shuffled` and a tolerance that treats all chunks alike (`fixed`, `phased`, `early-close`
    without `must`, `quick-loss-only`). With `in-order` a receiver that stops early loses the end.
    """

    def estimate_mean(
        self, layout: PayloadLayout, buffers: Buffers, received: Masks, out: Buffer
    ) -> None:
        zero_missing(layout, buffers, received)
        sum_into([layout.floats(buffer) for buffer in buffers], layout.floats(out))
        contributions = np.sum(received, axis=0)
        # One at least: of what nobody delivered the estimate is zero.
        covered = max(1, int(np.count_nonzero(contributions))) / layout.chunk_count
        divisor = np.maximum(contributions, 1) * covered
        by_chunk = chunk_elements(layout, out)
        by_chunk /= divisor.astype(np.float32)[:, np.newaxis]


# Error feedback: the memory of gradient compression (Seide et al., Interspeech 2014; Karimireddy et
# al., ICML 2019), with the codec and the receiver's final bitmap in place of the compressor. The
# applied updates plus the residual equal the sum of all gradients, since the receiver fills with
# zeros.


class Residual(SenderMemory):
    """Holds the residual for a peer, in whose place gradients go while it is zero."""

    keeps_rounding = True

    def __init__(self, layout: PayloadLayout) -> None:
        self.residual = layout.new_buffer()
        self._layout = layout
        self._sent = self.residual
        self._is_zero = True

    def payload(self, gradient: Buffer) -> Buffer:
        if self._is_zero:
            self._sent = gradient
        else:
            residual = self._layout.floats(self.residual)
            residual += self._layout.floats(gradient)
            self._sent = self.residual
        return self._sent

    def settle(self, report: TransferReport) -> None:
        received = report.received  # a reliable transport reports no bitmap
        if received is None and report.chunks_received != report.chunk_count:
            raise ValueError(
                f"filling error-feedback: the transfer to {report.peer} does not say what arrived"
            )
        if received is None:
            received = np.ones(report.chunk_count, dtype=np.bool_)
        if received.all() and self.rounded is None:
            if not self._is_zero:
                self.residual[:] = 0
            self._is_zero = True
            return
        rows = self._layout.rows(self.residual)
        if self._is_zero:
            missing = ~received
            rows[missing] = self._layout.rows(self._sent)[missing]
        if self.rounded is not None:
            rows[received] = self._layout.rows(self.rounded)[received]
        elif not self._is_zero:
            rows[received] = 0
        self._is_zero = False
        floats = self._layout.floats(self.residual)
        if not all_finite(floats):
            floats[~np.isfinite(floats)] = 0  # else it would be sent for ever


@dataclass(frozen=True, kw_only=True)
class ErrorFeedback(Zero):
    """Keeps a residual at the sender."""

    def sender_memory(self, layout: PayloadLayout) -> Residual:
        return Residual(layout)


@dataclass(frozen=True, kw_only=True)
class CommonFeedback(ErrorFeedback):
    """Error feedback for what not all workers have got: the server keeps one residual for all.

    So replicas stay the same, bit for bit. On the gather it is `error-feedback`.
    """

    common = True


# A randomised Hadamard transform: a lost chunk becomes a little noise in all elements.

# So many of the transform's steps are one product of matrices, of so many rows at a time. A larger
# product would take more than one thread, and a host of a lab has one.
_BITS, _ROWS = 5, 128


@functools.cache
def _hadamard_matrix(bits: int) -> Vector:
    matrix = np.ones((1, 1))
    for _ in range(bits):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]]) / np.sqrt(2)
    return matrix.astype(np.float32)


def walsh_hadamard(vector: Vector) -> Vector:
    """The orthonormal transform of 2**k elements; it undoes itself."""
    bits, done = len(vector).bit_length() - 1, 0
    while done < bits:
        more = min(_BITS, bits - done)
        rows = min(_ROWS, len(vector) >> more)
        steps = vector.reshape(-1, rows, 1 << more) @ _hadamard_matrix(more)
        # The lowest bits of each index become the highest; in the end all are where they were.
        vector = steps.reshape(-1, 1 << more).T.reshape(-1)
        done += more
    return vector


class Rotation:
    """An orthogonal transform of so many elements, drawn by a seed.

    The transform needs a power of two. With m the largest one, up to the n elements of a payload,
    it takes the first m elements, and then the last m: at least half of the elements twice.
    """

    def __init__(self, elements: int, seed: int) -> None:
        self.size = 1 << (elements.bit_length() - 1)
        self._beyond = elements - self.size
        draws = np.random.default_rng(seed)
        first, last = 2 * draws.integers(0, 2, (2, self.size), dtype=np.int8) - 1
        self._steps = [(slice(self.size), first), (slice(self._beyond, None), last)]

    def apply(self, vector: Vector) -> None:
        for part, signs in self._steps:
            vector[part] = walsh_hadamard(vector[part] * signs)

    def undo(self, vector: Vector) -> None:
        for part, signs in reversed(self._steps):
            vector[part] = walsh_hadamard(vector[part]) * signs

    def shares(self, arrived: Mask) -> tuple[float, float]:
        """The expectations of the first `size` elements and of the others, as parts of them.

        Let a share q of the last m elements have arrived, and r of those before them. Over the
        draws of the signs, the expectation of one of the first m elements is ((2m - n) q + r) / m
        of its value, that of any other q, whatever is lost independently of the signs.
        """
        others = float(np.count_nonzero(arrived[self._beyond :])) / self.size
        before = int(np.count_nonzero(arrived[: self._beyond]))
        return ((self.size - self._beyond) * others + before) / self.size, others


@functools.lru_cache(maxsize=4)
def rotation(elements: int, seed: int) -> Rotation:
    return Rotation(elements, seed)


class Rotated(SenderMemory):
    shared = True

    def __init__(self, layout: PayloadLayout, seed: int) -> None:
        self._layout, self._seed = layout, seed
        self._payload = layout.new_buffer()

    def payload(self, gradient: Buffer) -> Buffer:
        rotated = self._layout.floats(self._payload)
        rotated[:] = self._layout.floats(gradient)
        rotation(len(rotated), self._seed).apply(rotated)
        return self._payload


@dataclass(frozen=True, kw_only=True)
class Hadamard(Filling):
    """Sends payloads rotated by a randomised Hadamard transform, and undoes it on arrival.

    OptiReduce (NSDI 2025) spreads so what is lost. Here the whole payload is transformed, not each
    tensor: signs from a fixed seed, as in the released code, then the Walsh-Hadamard transform.
    Dividing the estimate by its expectation, which makes it unbiased, is ours.

    Args:
        seed: draws the signs; the same on both sides.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        if not (isinstance(self.seed, int) and self.seed >= 0):
            raise ValueError(f"seed is {self.seed!r}; valid: a whole number from 0")

    def estimate_mean(
        self, layout: PayloadLayout, buffers: Buffers, received: Masks, out: Buffer
    ) -> None:
        zero_missing(layout, buffers, received)
        drawn, mean = rotation(layout.element_count, self.seed), layout.floats(out)
        payloads = [layout.floats(buffer) for buffer in buffers]
        # Whole payloads need no factor of their own, and are transformed back together.
        whole = [payload for payload, mask in zip(payloads, received, strict=True) if mask.all()]
        if whole:
            sum_into(whole, mean)
            drawn.undo(mean)
        else:
            mean[:] = 0
        for payload, mask in zip(payloads, received, strict=True):
            if mask.all():
                continue
            drawn.undo(payload)
            first, others = drawn.shares(layout.element_mask(mask))
            payload[: drawn.size] *= np.float32(1 / first if first else 0)
            payload[drawn.size :] *= np.float32(1 / others if others else 0)
            mean += payload
        mean /= np.float32(len(payloads))

    def sender_memory(self, layout: PayloadLayout) -> Rotated:
        return Rotated(layout, self.seed)


FILLINGS: Registry[Filling] = Registry(
    "filling",
    {
        "zero": Zero,
        "rescale": Rescale,
        "error-feedback": ErrorFeedback,
        "common-feedback": CommonFeedback,
        "hadamard": Hadamard,
    },
    base=Filling,
)

# The transport knows nothing of training, so the fillings of its presets are set here. Published
# systems fill with zeros. In a gather, the workers that arrived stand in for the others; in a
# broadcast, of one sender, scaling up would only add variance.
DEFAULT_FILLING = "zero"
PRESET_FILLINGS = {
    "dblp-stream": {"gather": "rescale", "broadcast": "error-feedback"},
    "bounded-energy": {"gather": "error-feedback", "broadcast": "common-feedback"},
    "compressed": {"gather": "error-feedback", "broadcast": "common-feedback"},
    "optireduce": {"gather": "hadamard", "broadcast": "hadamard"},
    "top-k": {"gather": "error-feedback", "broadcast": "error-feedback"},
    "one-bit": {"gather": "error-feedback", "broadcast": "error-feedback"},
}
