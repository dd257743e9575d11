"""Bounded-loss gradient exchange for `DistributedDataParallel` and FSDP2, without the lab.

    state = BoundedLoss("dblp")                # after init_process_group, on all ranks
    ddp.register_comm_hook(state, state.hook)

`settings` has the options, `steps` takes buckets, `exchange` divides them among the ranks that
average, `owner` and `endpoint_thread` are its ends. `backend` is the c10d backend `bounded`, which
the import registers, and `collectives` has its ends. Imports torch, the transport, shared, fillings
and the phase rule. To add one of PyTorch's hooks: a line in `settings.HOOKS`.
"""

from testbed.shared.input_error import InputError

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    problem = "testbed.ddp needs torch, which is not installed; valid: pip install '.[ddp]'"
    raise ImportError(problem) from None

from testbed.ddp import backend
from testbed.ddp.bounded_loss import BoundedLoss
from testbed.ddp.report import BucketReport, StepReport
from testbed.ddp.settings import Return, Settings
from testbed.transport import PeerLost

__all__ = [
    "BoundedLoss",
    "BucketReport",
    "InputError",
    "PeerLost",
    "Return",
    "Settings",
    "StepReport",
]

backend.register()
