"""The only file that imports the SDN framework; an exception in a green thread ends the process."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from controllers.framework_choice import ENVIRONMENT_VARIABLE, FRAMEWORKS, preferred
from testbed.shared import failure

with warnings.catch_warnings():
    # Both frameworks need it, so its advice to migrate is for their authors.
    warnings.filterwarnings("ignore", message=r"\s*Eventlet is deprecated")
    import eventlet
    import eventlet.tpool
    import eventlet.wsgi

# Newer eventlet lacks a name that Ryu's web server, which is unused here, imports.
if not hasattr(eventlet.wsgi, "ALREADY_HANDLED"):
    eventlet.wsgi.ALREADY_HANDLED = object()

# os-ken's other hub, on native threads, hides the exceptions of its threads.
os.environ["OSKEN_HUB_TYPE"] = os.environ["RYU_HUB_TYPE"] = "eventlet"

FRAMEWORK = os.environ.get(ENVIRONMENT_VARIABLE) or preferred()
_PACKAGE = FRAMEWORKS[FRAMEWORK]
_ECHO_S = 5.0
_LOOK_S = 0.05


def module_of_framework(name: str) -> Any:
    """A module of the framework in use, such as `ofproto.ofproto_v1_3_parser`."""
    return importlib.import_module(f"{_PACKAGE}.{name}")


_app_manager = module_of_framework("base.app_manager")
_controller = module_of_framework("controller.controller")  # registers the listener's options
_handler = module_of_framework("controller.handler")
hub = module_of_framework("lib.hub")
ofp_event = module_of_framework("controller.ofp_event")
ofproto_v1_3 = module_of_framework("ofproto.ofproto_v1_3")
Options = module_of_framework("cfg").CONF
CONFIG_DISPATCHER = _handler.CONFIG_DISPATCHER
MAIN_DISPATCHER = _handler.MAIN_DISPATCHER
DEAD_DISPATCHER = _handler.DEAD_DISPATCHER
if TYPE_CHECKING:
    Application = Any
    Datapath = Any
else:
    Application = _app_manager.RyuApp if FRAMEWORK == "ryu" else _app_manager.OSKenApp
    Datapath = _controller.Datapath


def _or_end(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function` so that an exception is logged and ends the process."""

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except hub.TaskExit:
            raise
        except BaseException as error:
            failure.record(error, "controller")
            os._exit(1)  # sys.exit would end this green thread only

    return guarded


_spawn, _spawn_after = hub.spawn, hub.spawn_after


def _spawn_or_end(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return _spawn(_or_end(function), *args, **kwargs)


def _spawn_after_or_end(delay_s: float, function: Callable[..., Any], *args: Any) -> Any:
    return _spawn_after(delay_s, _or_end(function), *args)


# The framework starts its own threads through the same names.
hub.spawn, hub.spawn_after = _spawn_or_end, _spawn_after_or_end


def set_ev_cls(event: Any, dispatchers: Any = None) -> Callable[..., Any]:
    """The frameworks' decorator of event handlers; a handler that fails ends the process."""

    def decorate(handler: Callable[..., Any]) -> Any:
        return _handler.set_ev_cls(event, dispatchers)(_or_end(handler))

    return decorate


def string_option(name: str, help_text: str) -> None:
    """Register a command-line option, read later as `Options.<name with underscores>`."""
    option = module_of_framework("cfg").StrOpt(name, default="", help=help_text)
    Options.register_cli_opts([option])


def until_signal(*numbers: int) -> int:
    """Wait, while other green threads run, until one of these signals comes; return its number."""
    came: list[int] = []
    for number in numbers:
        signal.signal(number, lambda number, _: came.append(number))
    while not came:
        hub.sleep(_LOOK_S)
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)  # the second one ends at once
    return came[0]


def run_application(module: str, arguments: Sequence[str]) -> None:
    """Run a module's application and the OpenFlow listener in this process; never returns."""
    logging.basicConfig(stream=sys.stderr)  # the frameworks' own commands do the same
    __import__(module)  # registers the application's options before they are parsed
    Options(args=list(arguments), project=_PACKAGE, default_config_files=[])
    # A switch that vanished without a word is noticed after some 15 s.
    Options.set_override("echo_request_interval", _ECHO_S)
    Options.set_override("maximum_unreplied_echo_requests", 2)
    failure.answer_where()
    _or_end(_app_manager.AppManager.run_apps)([module, f"{_PACKAGE}.controller.ofp_handler"])
