"""The transport's hot path in C, where the package was installed with a C compiler at hand.

It imports the transport and numpy. To add a function: give it a twin in `hot_path.py` (numpy) or
`net/udp_socket.py` (plain calls), and a test that compares the two.
"""

from testbed.transport.native.hot_path import HOT_PATH, LIBRARY, WHY_NONE

__all__ = ["HOT_PATH", "LIBRARY", "WHY_NONE"]
