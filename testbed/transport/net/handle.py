"""What an endpoint gives for a transfer that was posted: wait for it, and read its reports."""

from collections.abc import Callable

from testbed.transport.core.reports import TransferReport


class Handle:
    """A transfer with one or several peers that was posted.

    Attributes:
        transfer: its number.
        sending: whether this side sends.
        reports: of those peers with which it has ended.
        failed: peers that were lost before it had ended, each with the reason.
    """

    def __init__(self, transfer: int, sending: bool, wait: Callable[["Handle"], None]) -> None:
        self.transfer = transfer
        self.sending = sending
        self.reports: dict[str, TransferReport] = {}
        self.failed: dict[str, str] = {}
        self._awaited: set[str] = set()
        self._wait = wait

    @property
    def done(self) -> bool:
        """Whether it has ended with every peer, in one way or the other."""
        return not self._awaited

    @property
    def peers(self) -> set[str]:
        """Those that take part."""
        return self._awaited | self.reports.keys() | self.failed.keys()

    def wait(self) -> dict[str, TransferReport]:
        """Returns the reports once it has ended with all peers.

        Raises PeerLost for one that is gone; with `survive_peers` only if all are.
        """
        self._wait(self)
        return dict(self.reports)

    def await_peer(self, peer: str) -> None:
        self._awaited.add(peer)

    def end(self, peer: str, outcome: TransferReport | str) -> None:
        """Notes a report, or why there is none."""
        if peer in self._awaited:
            self._awaited.remove(peer)
            if isinstance(outcome, str):
                self.failed[peer] = outcome
            else:
                self.reports[peer] = outcome
