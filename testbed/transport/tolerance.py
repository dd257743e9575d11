"""Tolerances: when may a receiver stop? A policy for the whole run, a stop rule for one transfer.

To add one: a subclass of `TolerancePolicy`, whose fields are its options, and a line in
`presets._BUILT_IN`; or a file of your own, `gather: ./mine.py`.
"""

import functools
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from testbed.transport.errors import check_number
from testbed.transport.layout import PayloadLayout


@dataclass(kw_only=True, slots=True)
class Progress:
    """The information that a stop rule may use, and must not modify; it changes with the transfer.

    Attributes:
        received, received_count: which chunks have arrived, shape (chunk_count,), and how many.
        expected_count: how many the sender sends: all, or those that it selects.
        now_s: the present time.
        first_arrival_s, last_arrival_s: when the first and the latest new chunk arrived; or None.
        probes: how many passes the sender has ended; without passes, how many PROBEs arrived.
        energy_levels: of each chunk, shape (chunk_count,), as `chunk_energy` has it; or None.
        first_sign_s: when the first chunk or `energy_levels` arrived, but not before this side
            asked for the transfer; None before both.
        recent: of the latest transfers from this peer, the oldest first, the seconds from the first
            sign until it stopped, and how many chunks had arrived then.
        earliest: the same of the first MOST_EARLIEST transfers from this peer.
        slowest: as `recent`, of whichever peer took longest for each transfer.
        round_trip_s: the smallest to this peer that this side measured, as a sender; or None.
        ends_s: when the stop rule looks again although nothing arrives; None for never.
    """

    received: NDArray[np.bool_]
    received_count: int = 0
    expected_count: int
    now_s: float
    first_arrival_s: float | None = None
    last_arrival_s: float | None = None
    probes: int = 0
    energy_levels: NDArray[np.uint8] | None = None
    first_sign_s: float | None = None
    recent: Sequence[tuple[float, int]] = ()
    earliest: Sequence[tuple[float, int]] = ()
    slowest: Sequence[tuple[float, int]] = ()
    round_trip_s: float | None = None
    ends_s: float | None = None


class StopRule(ABC):
    """Decides when a transfer's receiver stops, at the latest with all chunks."""

    needs_slowest = False  # whether it uses `Progress.slowest`

    @abstractmethod
    def satisfied(self, progress: Progress) -> bool:
        """Returns whether the transfer may stop now."""

    def deadline_s(self, progress: Progress) -> float | None:
        """Returns when to ask again even if nothing arrives; None (the default) for never."""
        return None

    def missing(self, progress: Progress) -> int | None:
        """Returns how many more chunks must arrive, at the least; None (the default): unknown."""
        return None


StopRuleFactory = Callable[[PayloadLayout], StopRule]


class TolerancePolicy(ABC):
    """Bounds what a receiver may give up, depending on the phase of the training.

    A fraction of the chunks needs `tolerance` alone, anything else `stop_rule`, too. `str` gives
    the text from which `as_policy` makes an equal one; subclasses leave it alone.

    Attributes:
        needs_energy: whether its stop rules need an order that sends the energy of chunks.
        own_text: of a policy in a user's own file; set by `as_policy`.
    """

    own_text = ""
    needs_energy = False

    def __str__(self) -> str:
        return self.own_text or repr(self)

    @abstractmethod
    def tolerance(self, critical: bool) -> float:
        """Returns the part of the chunks that may be missing, 0 <= P < 1."""

    def stop_rule(self, critical: bool) -> StopRuleFactory:
        """Returns the factory of stop rules for transfers in this phase."""
        tolerance = self.tolerance(critical)
        return lambda layout: FractionRule(tolerance)


class FractionRule(StopRule):
    """Stops once received / expected chunks >= 1 - P (DBLP, arXiv 2605.01989; before it MLT)."""

    def __init__(self, tolerance: float) -> None:
        check_tolerance(tolerance)
        self._tolerance = tolerance

    def satisfied(self, progress: Progress) -> bool:
        return self.missing(progress) <= 0

    def missing(self, progress: Progress) -> int:
        required = required_chunks(progress.expected_count, self._tolerance)
        return required - progress.received_count


def check_tolerance(tolerance: float, name: str = "tolerance") -> None:
    if not (isinstance(tolerance, int | float) and 0 <= tolerance < 1):
        raise ValueError(f"{name} is {tolerance!r}; valid: 0 (reliable) up to but not including 1")


@functools.lru_cache(maxsize=256)  # fractions are slow, and each transfer asks
def required_chunks(chunk_count: int, tolerance: float) -> int:
    """Returns ceil(chunk_count * (1 - tolerance)), at least 1, exactly for decimal tolerances."""
    check_tolerance(tolerance)
    given_up = Fraction(tolerance).limit_denominator(10**9)
    return max(1, math.ceil(chunk_count * (1 - given_up)))


# The receiver remembers so many of the first transfers, and so many of the latest of each layout.
MOST_EARLIEST = 64
RECENT = 16
# Transfers are of like size up to this factor between the numbers of their chunks.
ALIKE = 2
# A quarter of the latest transfers were calm: so it stays while up to three quarters are hit, and
# follows a path that becomes slower for good.
CALM = 0.25
# A transfer that takes exactly the bound has come in time, whatever the rounding.
_ROUNDING_S = 1e-9


class NamedPolicy(TolerancePolicy):
    """A policy whose text is its name and its options, those without a value left out."""

    name: ClassVar[str]
    newer: ClassVar[tuple[str, ...]] = ()  # options that texts leave out at their defaults

    def __str__(self) -> str:
        if self.own_text:
            return self.own_text
        defaults = inspect.signature(type(self)).parameters
        options = []
        for key in defaults:
            value = getattr(self, "fraction" if key == "tolerance" else key)
            if value in (None, "") or (key in self.newer and value == defaults[key].default):
                continue
            options.append(f"{key}={value}")
        return f"{self.name}:{','.join(options)}"


@dataclass(frozen=True, init=False)
class Fixed(NamedPolicy):
    """One tolerance for the whole run: MLT's rule in software, the baseline of DBLP's evaluation.

    Args:
        tolerance: the fraction of chunks that may be missing; 0 makes the transfer reliable.
    """

    name = "fixed"
    # `tolerance` is the method's name; the user's option keeps that word.
    fraction: float

    def __init__(self, tolerance: float) -> None:
        check_tolerance(tolerance)
        vars(self).update(fraction=float(tolerance))

    def tolerance(self, critical: bool) -> float:
        return self.fraction


@dataclass(frozen=True, kw_only=True)
class Phased(NamedPolicy):
    """Two tolerances: a low one in critical learning regimes, a high one outside (DBLP).

    Args:
        low: the tolerance in critical regimes: P_low of arXiv 2605.01989.
        high: the tolerance elsewhere, P_low + k; at least `low`.
    """

    name = "phased"
    low: float
    high: float

    def __post_init__(self) -> None:
        check_tolerance(self.low, "low")
        check_tolerance(self.high, "high")
        if self.low > self.high:
            raise ValueError(f"low is {self.low}, above high, which is {self.high}")

    def tolerance(self, critical: bool) -> float:
        return self.low if critical else self.high


@dataclass(frozen=True)
class PerLayer(NamedPolicy):
    """Each tensor has a bound on the share of its elements that may be missing: "PLOT-style".

    With one bound for all it is MLT's rule (NSDI 2024). A chunk of several tensors is given up only
    if each of them can spare its part.

    Args:
        default: the bound of every tensor without an exception.
        first, last: the bound of the first and of the last layer's tensors (a layer is the part
            of a name before its last dot); None for no exception.
        tensors: bounds by name, `*.bias@0;head.*@0.1` or a mapping of globs to bounds. The
            strictest of several exceptions applies.
    """

    name = "per-layer"
    default: float
    first: float | None = None
    last: float | None = None
    tensors: str | Mapping[str, float] = ""

    def __post_init__(self) -> None:
        for option in ("default", "first", "last"):
            if (bound := getattr(self, option)) is not None:
                check_tolerance(bound, option)
                vars(self)[option] = float(bound)
        vars(self).update(tensors=";".join(f"{glob}@{bound}" for glob, bound in self._by_name))

    @functools.cached_property
    def _by_name(self) -> list[tuple[str, float]]:
        return _parse_tensors(self.tensors)

    def tolerance(self, critical: bool) -> float:
        exceptions = [bound for bound in (self.first, self.last) if bound is not None]
        return max(self.default, *exceptions, *(bound for _, bound in self._by_name), 0.0)

    def stop_rule(self, critical: bool) -> StopRuleFactory:
        return lambda layout: TensorBounds(layout=layout, bounds=self.bounds(layout))

    def bounds(self, layout: PayloadLayout) -> list[float]:
        """Returns the bound of each tensor; ValueError where an exception matches none."""
        exceptions: list[list[float]] = [[] for _ in layout.tensors]
        for glob, bound in self._by_name:
            for index in _matching(layout, glob, "tensors"):
                exceptions[index].append(bound)
        # `features.0.weight` and `features.0.bias` belong to the layer `features.0`.
        layers = [name.rpartition(".")[0] or name for name, _ in layout.tensors]
        for extreme, limit in ((layers[0], self.first), (layers[-1], self.last)):
            if limit is not None:
                for index, layer in enumerate(layers):
                    exceptions[index] += [limit] if layer == extreme else []
        return [min(several, default=self.default) for several in exceptions]


class TensorBounds(StopRule):
    """Stops once no tensor lacks more elements than its bound allows."""

    def __init__(self, *, layout: PayloadLayout, bounds: list[float]) -> None:
        self._pieces = layout.pieces
        self._elements_per_chunk = layout.elements_per_chunk
        self._allowed: NDArray[np.int64] = np.array(
            [
                int(Fraction(bound).limit_denominator(10**9) * count)
                for (_, count), bound in zip(layout.tensors, bounds, strict=True)
            ]
        )
        # All chunks but the last are full, so at most this many may be missing. Counting per
        # tensor starts only then.
        most_missing = int(self._allowed.sum()) // layout.elements_per_chunk + 1
        self._at_least = max(1, layout.chunk_count - most_missing)
        # At the latest count, so many of these chunks had still to arrive.
        self._lacking = np.empty(0, dtype=np.int64)
        self._needed = 0

    def satisfied(self, progress: Progress) -> bool:
        if progress.received_count < self._at_least:
            return False
        came = int(np.count_nonzero(progress.received[self._lacking]))
        if came >= self._needed:
            came, self._needed = 0, self._count(progress)
        self._at_least = progress.received_count + self._needed - came
        return not self._needed

    def missing(self, progress: Progress) -> int:
        return self._at_least - progress.received_count

    def _count(self, progress: Progress) -> int:
        """Notes the chunks of tensors that lack too much; at least so many of them must arrive."""
        pieces = self._pieces
        lost = ~progress.received[pieces.chunk]
        missing = np.bincount(
            pieces.tensor, weights=pieces.elements * lost, minlength=len(self._allowed)
        )
        excess = np.maximum(missing - self._allowed, 0)
        self._lacking = np.unique(pieces.chunk[lost & (excess > 0)[pieces.tensor]])
        return -(-int(excess.sum()) // self._elements_per_chunk)


_MOST_NAMES = 12  # of tensors in an error
# These characters separate options and globs, as in `per-layer:tensors=*.bias@0;head*@0.1`.
_RESERVED = (",", ";", "@")


def _checked(glob: object, option: str) -> str:
    """Returns the glob without surrounding spaces; ValueError when it is no valid glob."""
    if not isinstance(glob, str) or not glob.strip() or any(sign in glob for sign in _RESERVED):
        raise ValueError(
            f"{option}: {glob!r} is no tensor name; valid: a name or a glob such as *.bias, "
            "without , ; and @"
        )
    return glob.strip()


def _matching(layout: PayloadLayout, glob: str, option: str) -> list[int]:
    """Returns the tensors' numbers that a glob matches; ValueError, which lists names, for none."""
    numbers = [index for index, (name, _) in enumerate(layout.tensors) if fnmatchcase(name, glob)]
    if not numbers:
        names = [name for name, _ in layout.tensors]
        shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
        raise ValueError(f"{option}: no tensor is called {glob!r}; there are {shown}")
    return numbers


def _parse_tensors(tensors: str | Mapping[str, float]) -> list[tuple[str, float]]:
    if isinstance(tensors, Mapping):
        pairs = list(tensors.items())
    elif isinstance(tensors, str):
        pairs = [_parse_bound(part) for part in tensors.split(";") if part]
    else:
        raise ValueError(f"tensors is {tensors!r}; valid: GLOB@TOLERANCE, joined by ;")
    for glob, bound in pairs:
        check_tolerance(bound, f"tensors: {glob}")
    return [(_checked(glob, "tensors"), float(bound)) for glob, bound in pairs]


def _parse_bound(text: str) -> tuple[str, float]:
    glob, at, bound = text.rpartition("@")
    try:
        return glob, float(bound if at else "no number")
    except ValueError:
        raise ValueError(f"tensors: {text!r} is not of the form GLOB@TOLERANCE") from None


@dataclass(frozen=True, init=False)
class EarlyClose(Fixed):
    """A fraction and a deadline: "LTP-style" Early Close.

    Until the deadline LTP's receiver (arXiv 2305.04279) waits for everything, afterwards for a
    fraction. How LTP adapts these limits is not known to us. With `patience` they follow a peer's
    latest 16 transfers of like size: the cut-off is `patience` times what all chunks need at the
    pace that a quarter of these reached, and a round trip; the fraction is what these would have
    lacked then in the mean, had their chunks come evenly.

    Args:
        tolerance: the fraction of chunks that may be missing after the deadline.
        deadline_s: the cut-off time, in seconds since the transfer's first chunk arrived.
        must: tensors that must arrive completely, such as `*.bias;head.*`; none when empty.
        patience: both limits adapt, with this factor; at least 1. None: they are constant.
    """

    name = "early-close"
    deadline_s: float
    must: str
    patience: float | None

    def __init__(
        self, tolerance: float, deadline_s: float, must: str = "", patience: float | None = None
    ) -> None:
        super().__init__(tolerance)
        check_number("deadline_s", deadline_s, above=0)
        if patience is not None:
            check_number("patience", patience, least=1)
            patience = float(patience)
        if not isinstance(must, str):
            raise ValueError(f"must is {must!r}; valid: names or globs, joined by ;")
        must = ";".join(_checked(part, "must") for part in must.split(";") if part)
        vars(self).update(deadline_s=float(deadline_s), must=must, patience=patience)

    def stop_rule(self, critical: bool) -> StopRuleFactory:
        return lambda layout: EarlyCloseRule(layout=layout, policy=self)


class EarlyCloseRule(StopRule):
    """Stops when the deadline has passed, the fraction has arrived, and `must` is complete."""

    def __init__(self, *, layout: PayloadLayout, policy: EarlyClose) -> None:
        self._policy = policy
        self._limits: tuple[float, int] | None = None
        globs = policy.must.split(";") if policy.must else []
        named = [i for glob in globs for i in _matching(layout, glob, "must")]
        pieces = layout.pieces
        self._must = np.unique(pieces.chunk[np.isin(pieces.tensor, named)])

    def satisfied(self, progress: Progress) -> bool:
        until_s, required = self._limits_of(progress)
        enough = progress.now_s >= until_s and progress.received_count >= required
        return enough and bool(progress.received[self._must].all())

    def deadline_s(self, progress: Progress) -> float | None:
        until_s, _ = self._limits_of(progress)
        # After the deadline only a new chunk can change the answer.
        return until_s if progress.now_s < until_s < math.inf else None

    def _limits_of(self, progress: Progress) -> tuple[float, int]:
        """Returns the deadline and the chunks that it asks for, fixed by the first chunk."""
        if self._limits is None:
            if progress.first_arrival_s is None:
                return math.inf, progress.expected_count
            cut_off_s, tolerance = self._measured(progress)
            required = required_chunks(progress.expected_count, tolerance)
            self._limits = progress.first_arrival_s + cut_off_s, required
        return self._limits

    def _measured(self, progress: Progress) -> tuple[float, float]:
        """Returns the cut-off time after the first chunk, and the tolerance from then on."""
        policy, chunk_count = self._policy, progress.expected_count
        alike_s = [
            took_s * chunk_count / count
            for took_s, count in progress.recent
            # What came in one batch took no time that could be told.
            if took_s > 0 and chunk_count <= ALIKE * count and count <= ALIKE * chunk_count
        ]
        whole_s = sorted(alike_s[-RECENT:])
        if policy.patience is None or not whole_s:
            return policy.deadline_s, policy.fraction
        calm_s = whole_s[int(len(whole_s) * CALM)]
        cut_off_s = policy.patience * calm_s + (progress.round_trip_s or 0.0)
        lacking = sum(max(0.0, 1 - cut_off_s / took_s) for took_s in whole_s) / len(whole_s)
        return cut_off_s, min(policy.fraction, lacking)


@dataclass(frozen=True, init=False)
class QuickLossOnly(Fixed):
    """Repairs losses that are found quickly, gives up others within a bound: "APNet'19-style".

    It gives up what only a long wait would reveal (Xia et al., APNet 2019): the sender has nothing
    else to send and asks, or no new chunk has come for a while.

    Args:
        tolerance: the bound, as the fraction of chunks that may be missing.
        quiet_s: seconds without a new chunk after which the rest counts as slow; longer than a
            round trip with full queues, or it cuts off quick repairs.
    """

    name = "quick-loss-only"
    quiet_s: float

    def __init__(self, tolerance: float, quiet_s: float) -> None:
        super().__init__(tolerance)
        check_number("quiet_s", quiet_s, above=0)
        vars(self).update(quiet_s=float(quiet_s))

    def stop_rule(self, critical: bool) -> StopRuleFactory:
        return lambda layout: QuickLossRule(policy=self)


class QuickLossRule(StopRule):
    """Stops when the bound is kept and, since the last chunk, the sender asked or was silent."""

    def __init__(self, *, policy: QuickLossOnly) -> None:
        self._fraction = policy.fraction
        self._quiet_s = policy.quiet_s
        self._count = 0
        self._probes = 0  # the number of PROBEs when the last new chunk came

    def satisfied(self, progress: Progress) -> bool:
        if progress.received_count != self._count:
            self._count, self._probes = progress.received_count, progress.probes
        quiet_s = self.deadline_s(progress)
        asked = progress.probes > self._probes
        return quiet_s is not None and (asked or progress.now_s >= quiet_s)

    def deadline_s(self, progress: Progress) -> float | None:
        required = required_chunks(progress.expected_count, self._fraction)
        if progress.last_arrival_s is None or self._count < required:
            return None
        return progress.last_arrival_s + self._quiet_s


@dataclass(frozen=True, kw_only=True)
class TimeBound(NamedPolicy):
    """A tolerance of time alone: "OptiReduce-style" (Warraich et al., NSDI 2025, arXiv 2310.06993).

    The hard bound, t_B, is the 95th percentile of 20 reliable runs at start-up, here of each peer's
    first transfers. Once all has been sent, as a PROBE says, the receiver waits only for a fraction
    of t_C, here the mean of the latest 16 transfers. Both count from a transfer's first sign.

    Args:
        warm_up: so many transfers from each peer are complete; their times set the bound.
        quantile: the bound is this quantile of them, by nearest rank; above 0, up to 1.
        wait: once all has been sent, the receiver waits for this part of the time that recent
            transfers took in the mean; above 0, up to 1.
    """

    name = "time-bound"
    warm_up: int = 20
    quantile: float = 0.95
    wait: float = 0.1

    def __post_init__(self) -> None:
        check_number("warm_up", self.warm_up, least=1, most=MOST_EARLIEST, whole=True)
        check_number("quantile", self.quantile, above=0, most=1)
        check_number("wait", self.wait, above=0, most=1)

    def tolerance(self, critical: bool) -> float:
        """Returns 0, which holds for a transfer in time; nothing bounds what a late one loses."""
        return 0.0

    def stop_rule(self, critical: bool) -> StopRuleFactory:
        return lambda layout: TimeBoundRule(policy=self)


class TimeBoundRule(StopRule):
    """Stops at the earlier of the two times; in a warm-up transfer, at neither."""

    def __init__(self, *, policy: TimeBound) -> None:
        self._policy = policy
        self._ended_s: float | None = None  # when the sender had sent all

    def satisfied(self, progress: Progress) -> bool:
        until_s = self.deadline_s(progress)
        return until_s is not None and progress.now_s >= until_s

    def missing(self, progress: Progress) -> int | None:
        # The first chunk starts the clock, so it must be noticed at once.
        if progress.first_arrival_s is None:
            return None
        return progress.expected_count - progress.received_count

    def deadline_s(self, progress: Progress) -> float | None:
        if self._ended_s is None and progress.probes:
            self._ended_s = progress.now_s
        first_s = self._ended_s if progress.first_sign_s is None else progress.first_sign_s
        warm_up = self._policy.warm_up
        if first_s is None or len(progress.earliest) < warm_up:
            return None
        taken_s = sorted(took_s for took_s, _ in progress.earliest[:warm_up])
        rank = math.ceil(round(self._policy.quantile * warm_up, 9))  # 0.95 of 20 is the 19th
        bound_s = first_s + taken_s[rank - 1] + _ROUNDING_S
        if self._ended_s is None:
            return bound_s
        mean_s = sum(took_s for took_s, _ in progress.recent) / len(progress.recent)
        return min(bound_s, self._ended_s + self._policy.wait * mean_s)
