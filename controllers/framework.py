"""The only file that imports the SDN framework; an exception in a green thread ends the process."""

from __future__ import annotations

import functools
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from testbed.shared import failure

with warnings.catch_warnings():
    # Ryu needs it, so its advice to migrate is for Ryu's authors.
    warnings.filterwarnings("ignore", message=r"\s*Eventlet is deprecated")
    import eventlet
    import eventlet.tpool
    import eventlet.wsgi

    # Newer eventlet lacks a name that Ryu's web server, which is unused here, imports.
    if not hasattr(eventlet.wsgi, "ALREADY_HANDLED"):
        eventlet.wsgi.ALREADY_HANDLED = object()
    from ryu import cfg
    from ryu.base import app_manager
    from ryu.controller import handler, ofp_event
    from ryu.controller.controller import Datapath  # registers the listener's options
    from ryu.controller.handler import CONFIG_DISPATCHER, DEAD_DISPATCHER, MAIN_DISPATCHER
    from ryu.lib import hub
    from ryu.ofproto import ofproto_v1_3, ofproto_v1_3_parser

__all__ = [
    "CONFIG_DISPATCHER",
    "DEAD_DISPATCHER",
    "MAIN_DISPATCHER",
    "Datapath",
    "eventlet",
    "hub",
    "ofp_event",
    "ofproto_v1_3",
    "ofproto_v1_3_parser",
]
Application = app_manager.RyuApp
Options = cfg.CONF
Options.register_cli_opts(
    [cfg.StrOpt("lab-file", help="JSON description of the network and its impairments")]
)
_ECHO_S = 5.0


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


_spawn = hub.spawn
# The framework starts its own threads through the same name.
hub.spawn = lambda function, *args, **kwargs: _spawn(_or_end(function), *args, **kwargs)


def set_ev_cls(event: Any, dispatchers: Any = None) -> Callable[..., Any]:
    """Ryu's decorator of event handlers; a handler that fails ends the process."""

    def decorate(function: Callable[..., Any]) -> Any:
        return handler.set_ev_cls(event, dispatchers)(_or_end(function))

    return decorate


def run_application(module: str, arguments: Sequence[str]) -> None:
    """Run a module's application and the OpenFlow listener in this process; never returns."""
    logging.basicConfig(stream=sys.stderr)  # Ryu's own command does the same
    Options(args=list(arguments), project="ryu", default_config_files=[])
    # A switch that vanished without a word is noticed after some 15 s.
    Options.set_override("echo_request_interval", _ECHO_S)
    Options.set_override("maximum_unreplied_echo_requests", 2)
    _or_end(app_manager.AppManager.run_apps)([module, "ryu.controller.ofp_handler"])
