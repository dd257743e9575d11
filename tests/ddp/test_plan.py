"""Who averages what: all of a bucket, each element once, in payloads that need no copy."""

import pytest

from testbed.ddp.plan import shard


@pytest.mark.parametrize("elements", [1, 99, 100, 101, 1000, 12_345])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_parts_cover_a_bucket_and_only_the_last_is_not_of_whole_chunks(elements, count):
    parts = [shard(elements, place, count, chunk_bytes=400) for place in range(count)]
    assert [at for part in parts for at in range(part.start, part.stop)] == list(range(elements))
    there = [part for part in parts if part.stop > part.start]
    assert all((part.stop - part.start) % 100 == 0 for part in there[:-1])
    assert max(part.stop - part.start for part in parts) < elements / count + 2 * 100
