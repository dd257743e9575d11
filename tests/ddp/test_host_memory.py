"""The memory for a GPU's gradients, as far as it can be seen without one."""

import numpy as np
import torch

from testbed.ddp.host_memory import HostMemory


def test_a_processors_gradient_is_not_copied_and_others_become_float32():
    memory = HostMemory()
    gradient = torch.arange(4, dtype=torch.float32)
    values = memory.values(0, gradient)
    gradient[0] = 7
    assert values[0] == 7
    half = memory.values(1, torch.full((3,), 0.5, dtype=torch.bfloat16))
    assert half.dtype == np.float32
    assert half.tolist() == [0.5] * 3
