"""What a link's data channel does during a wait, without a wake-up: see `core/routine.py`."""

from testbed.transport.core.connection import Connection
from testbed.transport.core.routine import Expected
from testbed.transport.native.routine import Arriving, Departing
from testbed.transport.net.udp_socket import UdpSocket


class Routine:
    """One channel's routine, which is begun before a wait and ended after it."""

    def __init__(self, udp: UdpSocket) -> None:
        self._udp = udp
        self._departing: Departing | None = None
        self._arriving: Arriving | None = None
        self.going: Departing | None = None  # what is sent and what is taken during the wait
        self.coming: Arriving | None = None

    def begin_going(self, connection: Connection, now_s: float) -> None:
        """Sends what may go."""
        self.going = None
        if (departures := connection.departures()) is None:
            return
        self._departing = self._departing or self._udp.departing()
        if self._departing is None:
            return
        self._udp.mark(connection.protected)
        waiting = len(departures.chunks) + departures.beyond
        due_s = departures.pacer.next_s(now_s, waiting)
        if self._departing.begin(departures, due_s, segmented=self._udp.segmentation):
            self.going = self._departing

    def begin_coming(self, expected: Expected | None, due_s: float | None) -> None:
        """Takes what is expected: what has gathered, at `due_s` first; or, for None, at once."""
        self.coming = None
        if expected is None:
            return
        self._arriving = self._arriving or self._udp.arriving()
        if self._arriving is None:
            return
        if self._arriving.begin(expected, due_s, self._udp.receiving):
            self.coming = self._arriving

    @property
    def active(self) -> bool:
        return self.going is not None or self.coming is not None

    @property
    def worked(self) -> bool:
        """Whether anything was done, or has to be decided: then it must be ended."""
        going, coming = self.going, self.coming
        return (going is not None and going.worked) or (coming is not None and coming.worked)

    def end(self, connection: Connection) -> Arriving | None:
        """Reports what was done; returns what was taken from the socket, if anything was."""
        going, coming, self.going, self.coming = self.going, self.coming, None, None
        if going is not None and going.worked:
            departures, batches = going.end()
            if batches:
                connection.departed(departures, batches)
        if coming is None or not coming.worked:
            return None
        arrivals, at_s = coming.end()
        if len(arrivals.stamps):
            connection.arrived(arrivals, at_s, waited=not coming.it.at_once)
        if coming.it.unplaced:
            self._udp.leave(coming)
        return coming
