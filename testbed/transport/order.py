"""Orders of chunks: in which order is a payload sent? And marks: what may switches drop first?

To add one: a subclass of `ChunkOrder` or `Marks`, whose fields are its options, and a line in
`ORDERS` or `MARKS`; or a file of your own, `order: ./mine.py`. The endpoint supplies a
`seed` that the user leaves out.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from testbed.shared import own_code
from testbed.shared.registry import Registry
from testbed.transport import chunk_energy
from testbed.transport.errors import check_number
from testbed.transport.layout import Leg, PayloadLayout


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderContext:
    """The information that an order may use.

    Attributes:
        transfer: the transfer's number; `Leg.round_of` gives its round.
        layouts: so many layouts rotate from round to round.
        layout: the places of the tensors.
        rows: the payload as it travels, shape (chunk_count, chunk_bytes); must not be modified.
            `layout.chunk_values` reads it.
        shared: whether the payload goes to several peers at once.
        missed: chunks that had to arrive in the peer's last transfer of this layout and did not,
            shape (chunk_count,); None: there are none, or the payload is `shared`.
        chosen: the chunks that are sent at all, shape (chunk_count,); None: all.
        energies: of the chunks, float64 of shape (chunk_count,), which an order may overwrite;
            None: not computed yet.
    """

    transfer: int
    layout: PayloadLayout
    rows: NDArray[np.uint8]
    layouts: int = 1
    shared: bool = False
    missed: NDArray[np.bool_] | None = None
    chosen: NDArray[np.bool_] | None = None
    energies: NDArray[np.float64] | None = None


class Arranger:
    """Arranges the chunks of one payload, in all passes of its transfer.

    `permutation` has the number of each chunk that is sent at all, once, in the order of sending.

    Attributes:
        energy_levels: of each chunk, as `chunk_energy` has it; None: the receiver is not told.
        needed: so many chunks, the first in the order, are probably all that the receiver needs.
        urgent: which chunks a repair may send again before they are known to be lost, shape
            (chunk_count,).
        protected: which chunks switches are to drop last; or None.
    """

    def __init__(
        self,
        permutation: NDArray[np.int64],
        energy_levels: NDArray[np.uint8] | None = None,
        needed: int | None = None,
        urgent: NDArray[np.bool_] | None = None,
        protected: NDArray[np.bool_] | None = None,
    ) -> None:
        self.energy_levels = energy_levels
        self.protected = protected
        self.urgent = np.zeros(len(permutation), np.bool_) if urgent is None else urgent
        self.needed = len(permutation) if needed is None else needed
        self._permutation = permutation

    def __call__(self, missing: NDArray[np.int64]) -> NDArray[np.int64]:
        """Puts ascending chunk numbers in the order of sending."""
        if len(missing) == len(self.urgent):
            return self._permutation
        is_missing = np.zeros(len(self.urgent), dtype=np.bool_)
        is_missing[missing] = True
        return self._permutation[is_missing[self._permutation]]

    @property
    def count(self) -> int:
        """So many chunks are sent at all."""
        return len(self._permutation)

    def only(self, chosen: NDArray[np.bool_]) -> "Arranger":
        """Returns one that sends none but the chosen chunks; others have no energy."""
        permutation, levels = self._permutation[chosen[self._permutation]], self.energy_levels
        return Arranger(
            permutation,
            None if levels is None else levels * chosen,
            min(self.needed, len(permutation)),
            self.urgent & chosen,
            self.protected,
        )


class ChunkOrder(ABC):
    """Arranges chunks for sending. It has no state; one object serves all transfers and peers."""

    sends_energy = False  # whether the receiver is told the energy of chunks

    def count(self, layout: PayloadLayout) -> int:
        """Returns how many of a payload's chunks are sent at all; equal on both sides."""
        return layout.chunk_count

    @abstractmethod
    def permutation(self, context: OrderContext) -> NDArray[np.int64]:
        """Returns all chunk numbers in the order of sending, shape (chunk_count,)."""

    def arranger(self, context: OrderContext) -> Arranger:
        """Returns the function that arranges ascending chunk numbers, in all passes."""
        permutation, count = self.permutation(context), context.layout.chunk_count
        if not np.array_equal(np.sort(permutation), np.arange(count)):  # some would never be sent
            expected = f"each number from 0 to {count - 1} once, in an array"
            raise own_code.unfit(self, "permutation", permutation, expected)
        return Arranger(np.asarray(permutation, dtype=np.int64))


_BLOCK = 1 << 18  # elements whose absolute values are made at a time: they stay in a cache

# Chunks that hold so many times the floor are urgent: parts that hold it end a late transfer.
_URGENT_FLOORS = 3

Per = Literal["payload", "tensor"]


@dataclass(frozen=True, kw_only=True)
class InOrder(ChunkOrder):
    """Ascending order, as in DBLP: a receiver that stops early gives up the last parameters."""

    def permutation(self, context: OrderContext) -> NDArray[np.int64]:
        return np.arange(context.layout.chunk_count, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class Shuffled(ChunkOrder):
    """Random order: every chunk is equally likely to be lost, which unbiased filling needs.

    Each transfer has a permutation of its own, for all its peers. Each host has a seed of its own
    if none is set, so that workers do not lose the same part of a gather.

    Args:
        seed: the permutations' seed; a whole number, 0 or more.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        check_number("seed", self.seed, least=0, whole=True)

    def permutation(self, context: OrderContext) -> NDArray[np.int64]:
        generator = np.random.default_rng([self.seed, context.transfer])
        return generator.permutation(context.layout.chunk_count)


@dataclass(frozen=True, kw_only=True)
class LargestMagnitudeFirst(ChunkOrder):
    """Large values first, so that the receiver gives up the least important chunks.

    By the mean of absolute values, as MLT's switches have it (NSDI 2024). A chunk with a NaN or an
    infinity comes first.
    """

    def permutation(self, context: OrderContext) -> NDArray[np.int64]:
        layout, rows = context.layout, context.rows
        score = np.empty(len(rows), dtype=np.float32)
        step = max(1, _BLOCK // layout.elements_per_chunk)
        with np.errstate(over="ignore", invalid="ignore"):
            for first in range(0, len(rows), step):
                part = slice(first, first + step)
                np.add.reduce(np.abs(layout.chunk_values(rows, part)), axis=1, out=score[part])
            elements = layout.chunk_elements  # without the padding
            large = np.flatnonzero(~np.isfinite(score))
            score /= elements
            # Double precision keeps the sum of large floats finite.
            sizes = np.abs(layout.chunk_values(rows, large))
            score[large] = sizes.sum(axis=1, dtype=np.float64) / elements[large]
        score[~np.isfinite(score)] = np.inf
        return np.argsort(-score, kind="stable")


@dataclass(frozen=True, kw_only=True)
class ByEnergy(ChunkOrder):
    """Chunks that must arrive first, then the most energy; the receiver is told the energy.

    Energy is the sum of squares, told in the steps of `chunk_energy`. These must arrive: the most
    energetic chunks that hold the floor together; those with a NaN or an infinity; and others that
    rotate from round to round. A receiver that is late may leave a rotating chunk out until its
    next round, unless it shares a payload.

    Args:
        floor: the share of the energy that must arrive; above 0, up to 1.
        within_rounds: each chunk must arrive once in so many rounds; 1 leaves out nothing. A
            prime shares no rhythm with other things that come every few rounds.
        share: the share of the energy at which the receiver stops, as far as the sender knows.
        at_most: the share of the chunks at which it stops in any case, as far as the sender knows.
        per: what energy is measured against. `payload`: all elements alike. `tensor`: each tensor
            counts for as much as it has elements, however small they are.
    """

    floor: float = 0.05
    within_rounds: int = 61
    share: float = 1.0
    at_most: float = 1.0
    per: Per = "payload"
    sends_energy = True

    def __post_init__(self) -> None:
        for name in ("floor", "share", "at_most"):
            check_number(name, getattr(self, name), above=0, most=1)
        check_number("within_rounds", self.within_rounds, least=1, whole=True)
        if self.per not in get_args(Per):
            raise ValueError(f"per is {self.per!r}; valid: {', '.join(get_args(Per))}")

    def permutation(self, context: OrderContext) -> NDArray[np.int64]:
        return chunk_energy.by_level(self._levels(context)[0])

    def arranger(self, context: OrderContext) -> Arranger:
        levels, urgent = self._levels(context)
        sent = None if context.chosen is None else int(np.count_nonzero(context.chosen))
        needed, _ = chunk_energy.needed_chunks(levels, self.share, self.at_most, sent=sent)
        return Arranger(chunk_energy.by_level(levels), levels, needed, urgent)

    def _levels(self, context: OrderContext) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Returns the chunks' energy levels, and which of them are urgent."""
        energy = context.energies
        if energy is None:
            energy = chunk_energy.energies(context.rows, context.layout)
        if self.per == "tensor":
            energy = chunk_energy.by_tensor(energy, context.rows, context.layout)
        chosen = np.True_ if context.chosen is None else context.chosen
        energy[~chosen] = 0.0  # what is not sent counts for nothing
        levels = chunk_energy.encode(energy)
        energy[~np.isfinite(energy)] = 0.0
        first = chunk_energy.by_level(levels)
        held = np.cumsum(energy[first])
        floor_count = np.searchsorted(held, self.floor * held[-1]) + 1
        levels[first[:floor_count]] |= chunk_energy.MUST
        step = Leg.round_of(context.transfer) // context.layouts
        rotating = np.zeros(len(levels), dtype=np.bool_)
        rotating[step % self.within_rounds :: self.within_rounds] = True
        rotating &= chosen
        levels[rotating] |= chunk_energy.MUST
        if context.missed is not None:
            missed = context.missed & chosen
            levels[missed] |= chunk_energy.MUST
            levels[missed & rotating] = chunk_energy.MUST  # without energy: in any case
        if context.shared:
            return levels, levels >= chunk_energy.MUST
        urgent = levels == chunk_energy.MUST
        urgent[first[: np.searchsorted(held, _URGENT_FLOORS * self.floor * held[-1]) + 1]] = True
        return levels, urgent


ORDERS: Registry[ChunkOrder] = Registry(
    "chunk order",
    {
        "in-order": InOrder,
        "shuffled": Shuffled,
        "largest-magnitude-first": LargestMagnitudeFirst,
        "by-energy": ByEnergy,
    },
    own="Order",
    base=ChunkOrder,
)


class Marks(ABC):
    """Gives chunks one of two classes, for the IP header (`shared.dscp`); it has no state."""

    @abstractmethod
    def protected(self, context: OrderContext) -> NDArray[np.bool_]:
        """Returns which chunks are to be dropped last, shape (chunk_count,)."""


NONE = "none"


def unmarked() -> None:
    """No marks: datagrams are sent as any other traffic."""


@dataclass(frozen=True, kw_only=True)
class LayerAndMagnitude(Marks):
    """Back layers and large values are dropped last, small values of front layers first (MLT).

    So MLT (NSDI 2024) and DLCP (arXiv 2008.08445) have it. What is back and what is large are
    assumptions of ours: together half of a payload.

    Args:
        back: the part of the payload, at its end, that counts as back layers; from 0 to 1.
        large: the part of all chunks that is protected beside these, those with the largest mean
            of absolute values, NaN and infinity included; from 0 to 1.
    """

    back: float = 0.25
    large: float = 0.25

    def __post_init__(self) -> None:
        check_number("back", self.back, least=0, most=1)
        check_number("large", self.large, least=0, most=1)

    def protected(self, context: OrderContext) -> NDArray[np.bool_]:
        count = context.layout.chunk_count
        marked = np.zeros(count, dtype=np.bool_)
        marked[count - round(self.back * count) :] = True
        by_magnitude = LargestMagnitudeFirst().permutation(context)
        front = by_magnitude[~marked[by_magnitude]]
        marked[front[: round(self.large * count)]] = True
        return marked


MARKS: Registry[Marks | None] = Registry(
    "kind of marks",
    {NONE: unmarked, "layer-and-magnitude": LayerAndMagnitude},
    base=Marks,
)


# A batch is of one class, so chunks of a class are sent together, in blocks of the order of so
# many: enough that batches are rarely cut, few enough that both classes are on the way at a time.
_MARKED_BLOCK = 64


@dataclass(frozen=True)
class MarkedOrder(ChunkOrder):
    """An order whose chunks have classes, protected ones first within each block."""

    order: ChunkOrder
    marks: Marks

    def permutation(self, context: OrderContext) -> NDArray[np.int64]:
        return self.arranger(context)(np.arange(context.layout.chunk_count, dtype=np.int64))

    def arranger(self, context: OrderContext) -> Arranger:
        protected = self.marks.protected(context)
        chunks = np.arange(context.layout.chunk_count, dtype=np.int64)
        ordered = self.order.arranger(context)(chunks)
        place = chunks // _MARKED_BLOCK * 2 + ~protected[ordered]
        return Arranger(ordered[np.argsort(place, kind="stable")], protected=protected)


@dataclass(frozen=True)
class SelectedOrder(ChunkOrder):
    """An order of the chunks that a selection chooses; others are not sent."""

    order: ChunkOrder
    selection: chunk_energy.Selection
    sends_energy: bool = False

    def permutation(self, context: OrderContext) -> NDArray[np.int64]:
        return self.order.permutation(context)

    def count(self, layout: PayloadLayout) -> int:
        return self.selection.count(layout)

    def arranger(self, context: OrderContext) -> Arranger:
        energy = chunk_energy.energies(context.rows, context.layout)
        chosen = self.selection.chosen(context.layout, context.rows, energy)
        return self.order.arranger(replace(context, chosen=chosen, energies=energy)).only(chosen)


def sending_order(order: str, marks: str, keep: float, *, seed: int) -> ChunkOrder:
    """The order of these names, with classes where there are marks, of the part `keep`."""
    arranged = ORDERS.create(order, seed=seed)
    if (kind := MARKS.create(marks)) is not None:
        arranged = MarkedOrder(arranged, kind)
    if keep == 1:
        return arranged
    return SelectedOrder(arranged, chunk_energy.Selection(keep), arranged.sends_energy)
