"""Runs the controller; options beside its own are the framework's."""

import argparse
import importlib
import ipaddress
import sys
from pathlib import Path

from controllers import lab_file
from testbed.lab.helpers.process import Requests
from testbed.shared import python_module
from testbed.shared.yaml_input import InputError


def main() -> None:
    """Read the lab file, then pass the other options to the framework."""
    parser = argparse.ArgumentParser(prog="python -m controllers", allow_abbrev=False)
    parser.add_argument(
        "--lab-file", type=Path, required=True, help="network and impairments: see by-hand.yaml"
    )
    parser.add_argument(
        "--when-told",
        action="store_true",
        help="get ready first, and read the file when a message has come on standard input",
    )
    parser.add_argument(
        "--ofp-listen-host",
        type=_address,
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where switches may connect from outside this machine, such as 0.0.0.0 for anywhere: "
        "whoever reaches it can pose as a switch (default: %(default)s)",
    )
    arguments, others = parser.parse_known_args(sys.argv[1:])
    if arguments.when_told:
        with python_module.large_imports():
            importlib.import_module("controllers.app")
        if Requests().wait() is None:
            sys.exit(1)
    try:
        lab_file.read(arguments.lab_file)
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    from controllers.framework import run_application

    listen = f"--ofp-listen-host={arguments.ofp_listen_host}"
    run_application("controllers.app", [f"--lab-file={arguments.lab_file}", listen, *others])


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no IP address; valid: one of this machine's, or 0.0.0.0 for all"
        ) from None


if __name__ == "__main__":
    main()
