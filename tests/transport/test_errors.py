"""What an error of the transport tells, also when it comes from another process."""

import pickle

from testbed.transport import PeerLost


def test_a_lost_peer_and_the_reason_survive_the_way_between_processes():
    for error in (
        lost := PeerLost("worker-1", "silent for 30 s"),
        pickle.loads(pickle.dumps(lost)),
    ):
        assert (error.peer, error.reason) == ("worker-1", "silent for 30 s")
        assert str(error) == "lost worker-1: silent for 30 s"
