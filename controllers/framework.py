"""The only file that imports the SDN framework, so that Ryu can be replaced in one place.

Ryu 4.34 is unmaintained; its fork os-ken has the same programming interface.
"""

from __future__ import annotations

import eventlet
import eventlet.wsgi

# Newer eventlet dropped a name that Ryu's (unused here) web server imports.
if not hasattr(eventlet.wsgi, "ALREADY_HANDLED"):
    eventlet.wsgi.ALREADY_HANDLED = object()

from ryu import cfg
from ryu.base.app_manager import AppManager, RyuApp
from ryu.controller import (
    controller,  # noqa: F401 (registers the listener's options)
    ofp_event,
)
from ryu.controller.controller import Datapath
from ryu.controller.handler import CONFIG_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from ryu.lib import hub
from ryu.ofproto import ofproto_v1_3

Options = cfg.CONF


def string_option(name: str, help_text: str) -> None:
    """Register a command-line option, read later as `Options.<name with underscores>`."""
    cfg.CONF.register_cli_opts([cfg.StrOpt(name, default="", help=help_text)])


def run_application(module: str, arguments: list[str]) -> None:
    """Run the Ryu application of a module and the OpenFlow listener in this process, for ever.

    Args:
        module: dotted name of a module that defines one `RyuApp` subclass.
        arguments: Ryu's command-line options, as for ryu-manager.
    """
    __import__(module)  # registers its own options before they are parsed
    cfg.CONF(args=arguments, project="ryu", default_config_files=[])
    AppManager.run_apps([module, "ryu.controller.ofp_handler"])


__all__ = [
    "CONFIG_DISPATCHER",
    "MAIN_DISPATCHER",
    "Datapath",
    "Options",
    "RyuApp",
    "eventlet",
    "hub",
    "ofp_event",
    "ofproto_v1_3",
    "run_application",
    "set_ev_cls",
    "string_option",
]
