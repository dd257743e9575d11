"""Runs the controller of a lab; its options are the framework's, and `--lab-file`."""

import sys

from testbed.lab.helpers.process import Requests
from testbed.shared import python_module


def main() -> None:
    """Get ready, and begin when a message has come on standard input."""
    with python_module.large_imports():
        from controllers import app, framework
    if Requests().wait() is None:
        sys.exit(1)
    framework.run_application(app.__name__, sys.argv[1:])


if __name__ == "__main__":
    main()
