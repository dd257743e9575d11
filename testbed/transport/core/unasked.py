"""What a peer says of transfers that nobody has posted here yet: kept, within bounds."""

from testbed.transport.core.connection_settings import ConnectionSettings
from testbed.transport.core.errors import ProtocolError
from testbed.transport.core.messages import ControlMessage, MessageType
from testbed.transport.core.numbering import REMEMBERED
from testbed.transport.core.worth import decode


class Unasked:
    """The messages of transfers that were not posted."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self.probes: dict[int, ControlMessage] = {}  # the latest of each transfer
        self.since_s: float | None = None  # since when there are any; None without
        self._settings = settings
        self._worth: dict[int, ControlMessage] = {}

    def lowest(self, otherwise: int) -> int:
        """The lowest transfer of which something was said; `otherwise` for none."""
        return min((*self.probes, *self._worth), default=otherwise)

    def take(self, message: ControlMessage, now_s: float) -> None:
        """Keeps a PROBE or WORTH; ProtocolError where it makes no sense, or there are too many."""
        if message.type is MessageType.PROBE:
            self._keep(message, self.probes, REMEMBERED)
            self.since_s = now_s if self.since_s is None else self.since_s
            return
        transfer, worth = message.transfer, self._worth
        count = self._settings.layout_of(transfer).chunk_count
        decode(message.body, chunk_count=count, known=transfer in worth)
        # A byte for each chunk is much. A sender says it once for each transfer in flight.
        self._keep(message, worth, self._settings.transfers_in_flight)

    def _keep(self, message: ControlMessage, kept: dict[int, ControlMessage], most: int) -> None:
        if message.transfer not in kept and len(kept) >= most:
            raise ProtocolError(
                f"{message.type.name}s for {most + 1} transfers that nobody asked for; "
                f"valid: at most {most}"
            )
        kept[message.transfer] = message

    def pop(self, transfer: int, now_s: float) -> list[ControlMessage]:
        """What was said of a transfer that is posted now, WORTH first, as it was sent."""
        said = [self._worth.pop(transfer, None), self.probes.pop(transfer, None)]
        self.since_s = now_s if self.probes else None
        return [each for each in said if each is not None]
