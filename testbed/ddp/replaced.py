"""What the environment says in place of a script's arguments, so that one script serves many arms.

BOUNDED_LOSS is a JSON object. Its keys are arguments of `BoundedLoss`, settings of the protocol's
preset (`low`), or `hook`: the name of one of PyTorch's in place of ours, beside its own options.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Chosen:
    """What is used in the end.

    Attributes:
        protocol: of our transport.
        free: whether its congestion control is our choice.
        arguments: of `BoundedLoss`, by name.
        instead: makes one of PyTorch's hooks, which then does everything; None: ours does.
    """

    protocol: ProtocolConfig
    free: bool
    arguments: dict[str, Any]
    instead: Callable[[dist.ProcessGroup], Hook] | None


def settings(
    protocol: str | ProtocolConfig, **arguments: Any
) -> tuple[Settings, Callable[[dist.ProcessGroup], Hook] | None]:
    """Of the arguments, replaced; and what makes another hook. Raises InputError."""
    used = chosen(protocol, arguments)
    rate_bps = used.arguments.pop("rate_bps")
    found = Settings(
        protocol=used.protocol,
        free=used.free,
        rate_bps=math.inf if rate_bps is None else rate_bps,
        **used.arguments,
    )
    return found, used.instead


def chosen(protocol: str | ProtocolConfig, arguments: Mapping[str, Any]) -> Chosen:
    """The script's arguments, replaced where the environment says so; InputError, in one line."""
    text = os.environ.get(ENVIRONMENT)
    if text is None:
        return Chosen(*protocol_of(protocol, arguments["rate_bps"]), dict(arguments), None)
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    try:
        if not isinstance(found, dict):
            raise InputError(f"is {shown(text)}; valid: a JSON object of arguments")
        instead = _torch_hook(found)
        used = dict(arguments)
        if instead is None:
            protocol = found.pop("protocol", protocol)
            for key in _ARGUMENTS.keys() & found.keys():
                used[key] = _checked(key, found.pop(key), _ARGUMENTS[key])
        return Chosen(*protocol_of(protocol, used["rate_bps"], **found), used, instead)
    except (InputError, TypeError) as error:
        raise InputError(f"{ENVIRONMENT}: {error}") from None


def _torch_hook(found: dict[str, Any]) -> Callable[[dist.ProcessGroup], Hook] | None:
    """Takes from what was found all that is about a hook; None where that is ours."""
    name = found.pop("hook", OURS)
    if name == OURS:
        return None
    if name not in HOOKS:
        raise InputError(f"hook is {shown(name)}; {one_of(str(name), [OURS, *HOOKS])}")
    make, options = HOOKS[name]
    given = {key: _checked(key, found.pop(key, each), int) for key, each in options.items()}
    if found:
        key = next(iter(found))
        raise InputError(
            f"the hook {name} has no {key!r}; valid: {', '.join(options) or 'nothing'}"
        )
    return lambda group: make(group, **given)


def _checked(key: str, value: Any, kind: type) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number if kind is float else type(value) is kind:
        return value
    raise InputError(f"{key} is {shown(value)}; valid: {_IN_WORDS[kind]}")
