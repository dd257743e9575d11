"""What the environment says in place of a script's arguments: BOUNDED_LOSS, a JSON object.

Its keys are arguments of `BoundedLoss`, settings of the protocol's preset (`low`), or `hook`: the
name of one of PyTorch's in place of ours, beside its own options.
"""

import json
import math
import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from testbed.ddp.settings import Settings, protocol_of
from testbed.ddp.torch_hooks import HOOKS, Hook
from testbed.shared.input_error import InputError, shown
from testbed.shared.registry import one_of
from testbed.transport import ProtocolConfig

ENVIRONMENT = "BOUNDED_LOSS"
OURS = "bounded-loss"
_IN_WORDS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
_ARGUMENTS: dict[str, type] = {
    **dict.fromkeys(("collective", "mode", "filling", "interface", "phase"), str),
    **dict.fromkeys(("rate_bps", "queue_bytes", "timeout_s", "late_share"), float),
    **dict.fromkeys(("port", "chunk_bytes", "transfers_in_flight", "min_ranks"), int),
    **dict.fromkeys(("insecure", "segmentation"), bool),
}


def settings(
    protocol: str | ProtocolConfig, **arguments: Any
) -> tuple[Settings, Callable[[dist.ProcessGroup], Hook] | None]:
    """The script's arguments, replaced where the environment says so; InputError, in one line.

    Returns also what makes one of PyTorch's hooks, which then does everything; None: ours does.
    """
    text = os.environ.get(ENVIRONMENT)
    if text is None:
        protocol, free = protocol_of(protocol, arguments["rate_bps"])
        return _settings(protocol, free, arguments), None
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    try:
        if not isinstance(given, dict):
            raise InputError(f"is {shown(text)}; valid: a JSON object of arguments")
        instead = _torch_hook(given)
        if instead is None:
            protocol = given.pop("protocol", protocol)
            for key in _ARGUMENTS.keys() & given.keys():
                arguments[key] = _checked(key, given.pop(key), _ARGUMENTS[key])
        protocol, free = protocol_of(protocol, arguments["rate_bps"], **given)
    except (InputError, TypeError) as error:
        raise InputError(f"{ENVIRONMENT}: {error}") from None
    return _settings(protocol, free, arguments), instead


def _settings(protocol: ProtocolConfig, free: bool, arguments: dict[str, Any]) -> Settings:
    rate_bps = math.inf if arguments["rate_bps"] is None else arguments["rate_bps"]
    return Settings(protocol=protocol, free=free, **{**arguments, "rate_bps": rate_bps})


def _torch_hook(given: dict[str, Any]) -> Callable[[dist.ProcessGroup], Hook] | None:
    """Takes from what is given all that is about a hook; None where that is ours."""
    name = given.pop("hook", OURS)
    if name == OURS:
        return None
    if name not in HOOKS:
        raise InputError(f"hook is {shown(name)}; {one_of(str(name), [OURS, *HOOKS])}")
    make, options = HOOKS[name]
    chosen = {key: _checked(key, given.pop(key, each), int) for key, each in options.items()}
    if given:
        key = next(iter(given))
        raise InputError(
            f"the hook {name} has no {key!r}; valid: {', '.join(options) or 'nothing'}"
        )
    return lambda group: make(group, **chosen)


def _checked(key: str, value: Any, kind: type) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number if kind is float else type(value) is kind:
        return value
    raise InputError(f"{key} is {shown(value)}; valid: {_IN_WORDS[kind]}")
