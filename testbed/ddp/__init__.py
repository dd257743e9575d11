"""Bounded-loss gradient exchange for `DistributedDataParallel` and FSDP2, without the lab.

    state = BoundedLoss("dblp")                # after init_process_group, on all ranks
    ddp.register_comm_hook(state, state.hook)

Users make a `BoundedLoss`, whose options are in `settings`. `steps` takes the buckets, `exchange`
divides them among the ranks that average, `owner` and `endpoint_thread` are the ends of that.
"""

from testbed.ddp.bounded_loss import BoundedLoss
from testbed.ddp.report import BucketReport, StepReport
from testbed.ddp.settings import Return
from testbed.shared.input_error import InputError
from testbed.transport import PeerLost

__all__ = ["BoundedLoss", "BucketReport", "InputError", "PeerLost", "Return", "StepReport"]
