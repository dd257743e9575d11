"""`python -m controllers --lab-file FILE [ryu-manager options]`: run the lab's controller."""

import sys

from controllers.framework import run_application

if __name__ == "__main__":
    run_application("controllers.app", sys.argv[1:])
