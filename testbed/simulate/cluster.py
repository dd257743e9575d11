"""A server and its workers in virtual time: they join, can be killed, and join again."""

from collections.abc import Callable, Mapping

from testbed.simulate.engine import Simulation
from testbed.simulate.party import Party, link_up
from testbed.simulate.way import Way
from testbed.transport.core.connection import Connection, ConnectionState
from testbed.transport.core.connection_settings import ConnectionSettings
from testbed.transport.core.errors import ProtocolError
from testbed.transport.core.joining import SERVER, Admission, Newcomer, UnknownSenderError
from testbed.transport.core.messages import Hello, Welcome
from testbed.transport.core.sending_path import SendingPath

_PORT = 47000


class Cluster:
    """A server and workers, each pair joined by two ways."""

    def __init__(
        self,
        simulation: Simulation,
        ways: Mapping[str, tuple[Way, Way]],
        *,
        settings: Callable[[str], ConnectionSettings],
        path: Callable[[str], SendingPath],
        terms: str = "",
        party: Callable[[str, Connection, Way], Party] | None = None,
    ) -> None:
        """`ways`: worker -> its way to the server, and back; the others make what is of a side."""
        self.simulation = simulation
        self.servers: dict[str, Party] = {}  # the server's side of each worker's latest connection
        self.workers: dict[str, Party] = {}  # each worker's own side
        self.refused: list[str] = []  # why newcomers were turned away, in order
        self._ways = dict(ways)
        self._settings = settings
        self._path = path
        self._terms = terms
        self._party = party or (lambda side, connection, way: Party(simulation, connection, way))
        self._started = False
        self._admission = Admission(
            addresses={name: name for name in ways}, layout=settings(SERVER).layout, terms=terms
        )

    def join(self, name: str) -> Party:
        """A worker connects, for the first time or again."""
        settings, now_s = self._settings(name), self.simulation.now_s
        hello = Hello(
            session=settings.session,
            name=name,
            data_port=_PORT,
            terms=self._terms,
            layout=settings.layout.encode(),
        )
        connection = Connection(
            peer=SERVER, settings=settings, path=self._path(name), now_s=now_s, hello=hello
        )
        there, _ = self._ways[name]
        party = self.workers[name] = self._party(name, connection, there)
        said = connection.control()
        there.say(self.simulation, lambda: self._newcomer(party, said))
        return party

    def _newcomer(self, worker: Party, said: bytes) -> None:
        """The server reads a HELLO, and the worker's former connection makes room."""
        settings, now_s = self._settings(SERVER), self.simulation.now_s
        newcomer = Newcomer(settings.session, now_s)
        try:
            hello = newcomer.feed(said)
            assert hello is not None  # it is small enough to come in one piece
            self._admission.judge(hello, hello.name)
        except (UnknownSenderError, ProtocolError) as error:
            self.refused.append(str(error))
            worker.cut(str(error))
            return
        former = self.servers.get(hello.name)
        if former is not None:
            former.cut("it has joined again")
        connection = Connection(
            peer=hello.name,
            settings=settings,
            path=self._path(SERVER),
            now_s=now_s,
            welcome=Welcome(session=settings.session, data_port=_PORT),
        )
        _, back = self._ways[hello.name]
        party = self.servers[hello.name] = self._party(SERVER, connection, back)
        link_up(party, worker)
        self._start(now_s)

    def _start(self, now_s: float) -> None:
        """Says READY to all who wait, once all have come."""
        if not self._started and len(self.servers) < len(self._ways):
            return
        present = [p for p in self.servers.values() if p.connection.lost is None]
        self._started = self._started or len(present) == len(self._ways)
        for party in present if self._started else []:
            if party.connection.state is ConnectionState.WAITING:
                party.connection.start(now_s)
                party.work()

    def kill(self, name: str) -> None:
        """A worker's process ends: its kernel closes the connection."""
        self.workers.pop(name).cut("the connection was closed")
