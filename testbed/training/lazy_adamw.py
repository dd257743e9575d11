"""AdamW for gradients of which a part comes in each round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class LazyAdamW(torch.optim.Optimizer):
    """AdamW whose elements, and their moments, wait in rounds that bring them nothing.

    Plain Adam takes a missing gradient for one of zero, so moments decay until it is sent. Here a
    zero is read as "nothing came", and each element counts its own steps; weight decay acts on all
    in each round. Without zeros this is AdamW (Loshchilov and Hutter, ICLR 2019), to rounding.
    `momentum` is beta 1. Parameters are float32 or float64.
    """

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter],
        *,
        lr: float = 1e-3,
        momentum: float = 0.9,
        weight_decay: float = 0.01,
        beta2: float = 0.999,
        eps: float = 1e-8,
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, {**options, "beta2": beta2, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, weight.grad, group)
        return loss

    def _move(self, weight: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        # In half precision the counts of gradients would stick, and 1 - beta2 be 0.
        if gradient.is_sparse or weight.dtype not in (torch.float32, torch.float64):
            raise TypeError("lazy-adamw takes dense float32 or float64 parameters")
        state = self.state[weight]
        if not state:
            for name in ("came", "mean", "square"):
                state[name] = torch.zeros_like(weight)
        beta1, beta2 = group["momentum"], group["beta2"]
        came = (gradient != 0).to(weight.dtype)
        state["came"] += came
        state["mean"].lerp_(gradient, (1 - beta1) * came)
        state["square"].lerp_(gradient.square(), (1 - beta2) * came)
        # Where nothing has come yet, both are 0 / 0, and the last factor is not looked at.
        mean = state["mean"] / (1 - beta1 ** state["came"])
        size = (state["square"] / (1 - beta2 ** state["came"])).sqrt() + group["eps"]
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.sub_(torch.where(came > 0, mean / size, 0.0), alpha=group["lr"])
