"""The fast path in C, where the package was installed with a C compiler at hand.

It imports the transport and numpy. To add a function: give it a twin in `fast_path.py` (numpy) or
`net/udp.py` (plain calls), and a test that compares the two.
"""
