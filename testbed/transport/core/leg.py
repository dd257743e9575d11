"""The two legs of a round, and the numbers of their transfers."""

from enum import IntEnum


class Leg(IntEnum):
    """The two directions of a round; a transfer's number is 2 * round + leg."""

    GATHER = 0  # worker to server
    BROADCAST = 1  # server to worker

    def transfer(self, round_index: int) -> int:
        """The number of this leg's transfer in round `round_index` (from 0)."""
        return 2 * round_index + self

    @staticmethod
    def round_of(transfer: int) -> int:
        """The round to which a transfer's number belongs."""
        return transfer // 2
