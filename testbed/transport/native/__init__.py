"""The fast path in C, where the package was installed with a C compiler at hand.

It imports the transport and numpy. A function that is added needs a twin in Python and a test that
compares the two.
"""
