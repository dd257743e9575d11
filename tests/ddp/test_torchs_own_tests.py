"""PyTorch's own tests of backends, `distributed_test.py` of its wheel, over the backend `bounded`.

Those that need other ranks, a GPU or another backend skip themselves.
"""

import os
import time
import unittest
from datetime import timedelta

import pytest
import torch.distributed as dist

from tests.ddp.ranks import launch, values

pytest.importorskip("expecttest", reason="needs expecttest, of which torch's tests are made")
RANKS = 3
RUN_HERE = 90  # of all; were they fewer, some would skip themselves that have run before
# Torch has monitored_barrier for a backend named gloo alone.
REFUSED = {"test_monitored_barrier_gloo", "test_monitored_barrier_gloo_subgroup"}
# One of each kind, which take seconds together.
QUICK = (
    "test_DistributedDataParallelCPU",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_all_gather_coalesced_simple",
    "test_all_gather_object_subgroup",
    "test_all_reduce_coalesced_full_group_sum",
    "test_all_reduce_complex_unsupported_ops",
    "test_all_reduce_sum_async",
    "test_batch_isend_irecv_gloo_tags",
    "test_broadcast_full_group",
    "test_get_backend",
    "test_get_future",
    "test_monitored_barrier_gloo_subgroup",
    "test_reduce_full_group_max",
    "test_scatter_full_group",
    "test_sparse_all_reduce_sum",
    "test_static_graph_api_cpu",
)


def run(rank, names, folder):
    """Returns the outcome of each test, or of all: `passed`, `skipped` or the error."""
    # Its branches and skips go by the backend's name; ours is to do what Gloo does.
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(RANKS), TEMP_DIR=folder)
    from torch.testing._internal.distributed import distributed_test as suite

    store = dist.distributed_c10d._get_default_store()

    def meet(place):
        store.add(place, 1)
        until_s = time.monotonic() + 30
        while store.add(place, 0) < RANKS:
            assert time.monotonic() < until_s, f"not all ranks came to {place}"
            time.sleep(0.002)

    class Tests(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
        barriers = 0

        def _barrier(self, *_args, **_more):  # its own is files, and a pause of 0.1 s
            self.barriers += 1
            meet(f"{self._testMethodName}, barrier {self.barriers}")

    dist.destroy_process_group()
    outcomes = {}
    for name in names or [name for name in dir(Tests) if name.startswith("test_")]:
        within, timeout = dist.PrefixStore(name, store), timedelta(seconds=20)
        dist.init_process_group("bounded", None, timeout, RANKS, rank, within)
        suite.BACKEND = (
            "bounded" if name in ("test_get_backend", "test_Backend_enum_class") else "gloo"
        )
        case, method = Tests(name), getattr(Tests, name)
        case.rank = rank
        try:
            if getattr(method, "__unittest_skip__", False):
                raise unittest.SkipTest(name)
            getattr(case, name)()
            outcomes[name] = "passed"
        except (unittest.SkipTest, SystemExit):  # it exits where there is no GPU
            outcomes[name] = "skipped"
        except Exception as error:
            outcomes[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        meet(f"{name}, end")
        dist.destroy_process_group()
    return outcomes


def outcomes_of(names, tmp_path):
    for folder in ("barrier", "test_dir", "init_dir"):
        (tmp_path / folder).mkdir()
    by_rank = values(launch(run, RANKS, names=names, folder=str(tmp_path)))
    return {
        name: next((row[name] for row in by_rank if row[name] != "passed"), "passed")
        for name in by_rank[0]
    }


def refused(outcomes):
    return {name for name, outcome in outcomes.items() if outcome not in ("passed", "skipped")}


def test_one_of_each_kind(tmp_path):
    outcomes = outcomes_of(QUICK, tmp_path)
    assert "skipped" not in outcomes.values()
    assert refused(outcomes) == REFUSED & outcomes.keys(), outcomes


@pytest.mark.long
def test_all(tmp_path):
    outcomes = outcomes_of(None, tmp_path)
    assert refused(outcomes) == REFUSED, outcomes
    assert sum(outcome != "skipped" for outcome in outcomes.values()) == RUN_HERE
