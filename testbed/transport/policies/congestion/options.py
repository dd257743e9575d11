"""Common defaults of the algorithms' options, and the check of their values."""

DATAGRAM_BYTES = 1514  # of MTU size, on an Ethernet wire
INITIAL_WINDOW = 10  # datagrams; RFC 6928
MINIMUM_WINDOW = 2  # datagrams; RFC 9002, section 7.2


def check_options(
    *, above: float = 0, at_most: float | None = None, zero: bool = False, **options: float
) -> None:
    """Raises ValueError naming the first option whose value is not a number in the range.

    With `zero`, 0 is valid too.
    """
    for name, value in options.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        valid = number and value > above and (at_most is None or value <= at_most)
        if not valid and not (number and zero and value == 0):
            limits = f"above {above:g}" + ("" if at_most is None else f" and at most {at_most:g}")
            raise ValueError(f"{name} is {value}; valid: {limits}{', or 0' if zero else ''}")
