"""The error that bad input raises, in a file that needs the standard library alone."""


class InputError(ValueError):
    """Bad input: the message is one line for the user; the exit status is 2."""
