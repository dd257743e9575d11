"""Ends a wait from another thread, which no other part of an endpoint allows."""

import os
import threading


class Alarm:
    """A descriptor that can be read once it has been rung."""

    def __init__(self) -> None:
        self.rung = False  # whether it has been rung since it was last hushed
        self._descriptor = -1
        # The descriptor's number may be another file's once it is closed.
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """For a selector; opens it first."""
        if self._descriptor < 0:
            with self._lock:
                self._descriptor = os.eventfd(int(self.rung), os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return self._descriptor

    def ring(self) -> None:
        """Any thread may call it, also when nobody waits yet or any more."""
        with self._lock:
            if not self.rung and self._descriptor >= 0:
                os.eventfd_write(self._descriptor, 1)
            self.rung = True

    def hush(self) -> None:
        """The one who waited has heard it."""
        with self._lock:
            if self.rung and self._descriptor >= 0:
                os.eventfd_read(self._descriptor)
            self.rung = False

    def close(self) -> None:
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def abandon(self) -> None:
        """In a process that was forked, perhaps while another thread of its parent rang."""
        self._lock = threading.Lock()
        self.close()
