"""The buckets of a step, and who averages which part of each."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from testbed.ddp.settings import Collective, difference
from testbed.shared.input_error import InputError
from testbed.transport import PayloadLayout
from testbed.transport.layout import ELEMENT_BYTES

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Bucket:
    """One of DDP's buckets."""

    elements: int
    dtype: str
    slots: tuple[int, ...]  # its parameters' numbers, in order

    def facts(self) -> dict[str, Any]:
        """For comparison with other ranks."""
        return asdict(self) | {"slots": list(self.slots)}


# A step's buckets, in the order in which they come.
Plan = tuple[Bucket, ...]


def owners(collective: Collective, world: int) -> list[int]:
    """The ranks that average: each a part of every bucket."""
    return [0] if collective == "server" else list(range(world))


def shard(elements: int, place: int, count: int, chunk_bytes: int) -> slice:
    """The part of a bucket that the owner at `place` of `count` averages; may be empty."""
    # All but the last are of whole chunks, so that each is a payload as it lies in memory.
    per_chunk = chunk_bytes // ELEMENT_BYTES
    chunks = -(-elements // per_chunk)
    first, end = (chunks * each // count * per_chunk for each in (place, place + 1))
    return slice(min(first, elements), min(end, elements))


def layout_of(plan: Plan, place: int, count: int, chunk_bytes: int) -> PayloadLayout | None:
    """What one owner averages, a tensor for each bucket of which it has a part; None: nothing."""
    parts = [shard(bucket.elements, place, count, chunk_bytes) for bucket in plan]
    tensors = [
        (f"bucket-{index}", part.stop - part.start)
        for index, part in enumerate(parts)
        if part.stop > part.start
    ]
    return PayloadLayout(tensors, chunk_bytes) if tensors else None


def require_plain(gradient: torch.Tensor) -> None:
    """InputError for a gradient that cannot be sent as a row of numbers."""
    valid = "dense, contiguous float32, float16 or bfloat16"
    if gradient.layout is not torch.strided:
        found = f"is sparse ({gradient.layout})"
    elif not gradient.is_contiguous():
        found = "is not contiguous"
    elif gradient.dtype not in _DTYPES:
        found = f"has elements of {gradient.dtype}"
    else:
        return
    raise InputError(f"a bucket's gradient {found}; valid: {valid}")


def require_equal(stage: str, facts: list[Any]) -> None:
    """InputError, the same line on all ranks, where their buckets differ; each as `facts` says."""
    valid = "the same model and DistributedDataParallel on all ranks"
    if (differs := difference(facts, valid)) is not None:
        raise InputError(f"{stage}: {differs}")
