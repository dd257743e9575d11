"""Bounded-loss gradient exchange for `DistributedDataParallel` and FSDP2, without the lab.

    state = BoundedLoss("dblp")                # after init_process_group, on all ranks
    ddp.register_comm_hook(state, state.hook)

`bounded_loss` is what users make, `steps` what it does with each step's buckets, `endpoint_thread`
one end of an exchange, and `exchange` all ends that a rank has. Imports torch, the transport,
shared, fillings and the phase rule. To add a collective: a line of `owners` in `plan`.
"""

from testbed.ddp.bounded_loss import BoundedLoss
from testbed.ddp.rendezvous import Return
from testbed.ddp.report import BucketReport, StepReport
from testbed.shared.input_error import InputError
from testbed.transport import PeerLost

__all__ = ["BoundedLoss", "BucketReport", "InputError", "PeerLost", "Return", "StepReport"]
