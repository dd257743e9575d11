"""`python -m testbed VERB`: the same as `./lab VERB`."""

from testbed.cli import main

if __name__ == "__main__":
    main()
