"""What all arms of an experiment share: their transport, and what hosts cost in virtual time."""

from pydantic import Field, field_validator

from testbed.shared.section import Section
from testbed.transport.core.pacing import LONGEST_QUANTUM_S, QUANTUM_S
from testbed.transport.net import path_mtu

LAB_MTU_BYTES = 1500


class Transport(Section):
    """What all arms share."""

    chunk_bytes: int = Field(
        default=1456, ge=4, multiple_of=4, description="payload of one datagram of our transport"
    )
    pace: float = Field(
        default=0.97,
        gt=0,
        le=1.5,
        description="rate of `fixed` over a sender's fair share of the link",
    )
    quantum_s: float = Field(
        default=QUANTUM_S,
        gt=0,
        le=LONGEST_QUANTUM_S,
        description="how much of its rate `fixed` sends at a time, if a quarter of a sender's "
        "share of the smallest queue holds it",
    )
    peer_timeout_s: float = Field(
        default=30.0, gt=0, description="a peer that is silent for so long counts as lost"
    )

    @field_validator("chunk_bytes")
    @classmethod
    def _fits_a_frame(cls, chunk_bytes: int) -> int:
        largest = path_mtu.largest_chunk_bytes(LAB_MTU_BYTES)
        if chunk_bytes > largest:
            raise ValueError(
                f"the lab's links carry packets of {LAB_MTU_BYTES} bytes, headers included; "
                f"valid: multiples of 4 up to {largest}"
            )
        return chunk_bytes


class Simulation(Section):
    """What hosts, and switches, need in virtual time; in a lab they need what they need."""

    sent_s: float = Field(default=0.0, ge=0, le=1, description="for each datagram that it sends")
    received_s: float = Field(default=0.0, ge=0, le=1, description="for each that it receives")
    batch_s: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="for each batch of datagrams that it sends or receives at once, beside these",
    )
    wakes_s: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="for a worker to do what it is told, such as to begin a gather: the mean of "
        "exponential draws",
    )
    compute_s: float = Field(
        default=0.0,
        ge=0,
        le=3600,
        description="for each iteration of a worker, where `training.pace` is `real`: simulated "
        "runs are paced at it; 0: they are refused",
    )
    spray: bool = Field(
        default=False,
        description="switches choose among equally short paths for each datagram, in turn, not for "
        "each flow; a lab refuses it",
    )
