"""Scales up what arrived, so that its expectation is the mean of what was sent.

Let g_w be the gradient of worker w, n the number of workers, and A_w(i) tell whether chunk i of w
arrived. Each element's sum is divided by the number of workers that contributed to it (as arXiv
2507.07114 does), and by K/N, the share of the chunks to which any worker contributed:

    estimate(i) = (N / K) * sum_w A_w(i) g_w / c(i),    c(i) = sum_w A_w(i),    zero where c(i) = 0

It is unbiased if two conditions hold: (a) chunks are exchangeable, that is, losses do not depend on
a chunk's place; (b) workers are exchangeable, that is, none loses more than the others. Then chunk
i is one of the K with probability K/N, and given c(i) the contributors are a uniform choice of
workers, whose mean has the expectation mean(g). The factor N/K makes up for the elements that no
worker delivered. Without it the estimate is too small by P^n: 7 % for P = 0.408 and three workers.
For a broadcast n = 1: divide by the share that arrived.

(a) holds with the order `shuffled` and a tolerance that treats all chunks alike (`fixed`, `phased`,
`early-close` without `must`, `quick-loss-only`). With `in-order` a receiver that stops early always
loses the end. Then the beginning is overestimated, and the end is lost.
"""

from dataclasses import dataclass

import numpy as np

from testbed.training.filling.base import (
    Buffer,
    Buffers,
    Filling,
    Masks,
    chunk_elements,
    zero_missing,
)
from testbed.training.vectors import sum_into
from testbed.transport import PayloadLayout


@dataclass(frozen=True, kw_only=True)
class Rescale(Filling):
    """Unbiased where losses are random. Without loss it is the plain mean, bit for bit."""

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
