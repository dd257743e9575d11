"""Workers that come back: the server lets them in between rounds, and never takes a stranger."""

import json
import socket

import pytest

from testbed.training import coordination
from testbed.training.coordination import CoordinationError, Coordinator, Follower
from tests.transport.loopback import in_thread


class Scene:
    """A coordinator with its workers, all present."""

    def __init__(self, folder, *names, **options):
        self.path = folder / "c.sock"
        listener = coordination.listen(self.path)
        joining = {name: in_thread(Follower, self.path, name, 10) for name in names}
        options = {"keep_going": True, "take_back": True, **options}
        self.coordinator = Coordinator(listener, names, 10, **options)
        self.followers = {name: future.result(timeout=30) for name, future in joining.items()}

    def die(self, name):
        self.followers.pop(name)._line.close()

    def come(self, name):
        self.followers[name] = Follower(self.path, name, 10)

    def reach(self, point, *names):
        for name in names:
            self.followers[name].reach(point)

    def say(self, words):
        """As somebody whom nobody expects."""
        stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stranger.settimeout(10)
        stranger.connect(str(self.path))
        stranger.sendall(words)
        return stranger


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path, "a", "b", "c")


def test_who_comes_back_in_a_round_waits_for_its_end_and_then_takes_part(scene):
    coordinator, followers = scene.coordinator, scene.followers
    coordinator.release("compute")
    for each in followers.values():
        each.wait("compute")
    scene.die("b")
    scene.come("b")  # in the middle of the round
    waiting = in_thread(followers["b"].wait_at_the_door)
    scene.reach("gather", "a", "c")
    assert list(coordinator.gather("gather")) == ["a", "c"]
    coordinator.release("gather")
    for name in ("a", "c"):
        followers[name].wait("gather")
    scene.reach("idle", "a", "c")
    assert list(coordinator.gather("idle")) == ["a", "c"]
    assert not waiting.done()
    assert coordinator.present == ["a", "c"]
    assert coordinator.lost == {"b": "b: closed its connection"}

    assert coordinator.newcomers() == ["b"]
    assert coordinator.present == ["a", "c"]  # it has no state yet
    coordinator.tell("b", "join", round=7)
    waiting.result(timeout=30)
    assert not coordinator.has_spoken("b")
    scene.reach("idle", "b")
    assert coordinator.hear("b", "idle") == {"at": "idle"}
    coordinator.seat("b")
    assert coordinator.present == ["a", "b", "c"]
    assert coordinator.lost == {}
    assert coordinator.newcomers() == []
    coordinator.release("compute", exchange=5)
    for each in followers.values():
        assert each.wait("compute", "give") == {"go": "compute", "exchange": 5}


def test_a_name_that_is_present_waits_until_the_other_has_gone(scene):
    coordinator = scene.coordinator
    first = scene.followers["b"]
    scene.come("b")
    assert coordinator.newcomers() == []
    assert coordinator.present == ["a", "b", "c"]
    first.reach("idle")  # still unread when its process ends
    first._line.close()
    assert coordinator.newcomers() == ["b"]
    assert coordinator.lost == {"b": "b: closed its connection"}


def test_of_two_that_wait_under_one_name_the_later_counts(scene):
    coordinator = scene.coordinator
    scene.die("b")
    scene.come("b")
    earlier = scene.followers["b"]
    scene.come("b")
    assert coordinator.newcomers() == ["b"]
    with pytest.raises(CoordinationError, match="server: closed its connection"):
        earlier.wait_at_the_door()
    coordinator.tell("b", "join")
    scene.followers["b"].wait_at_the_door()


def test_one_that_dies_at_the_door_is_forgotten(scene):
    scene.die("b")
    scene.come("b")
    scene.die("b")
    assert scene.coordinator.newcomers() == []
    scene.come("b")
    assert scene.coordinator.newcomers() == ["b"]


@pytest.mark.parametrize(
    "words",
    [b'{"name": "z"}\n', b"{}\n", b"[1]\n", b"\n", b"x" * 5000, b"[" * 4000 + b"\n", b"\xff\n"],
)
def test_strangers_are_shown_out_and_counted_and_hold_nobody_up(scene, words):
    scene.die("c")
    scene.come("c")
    stranger = scene.say(words)
    assert scene.coordinator.newcomers() == ["c"]
    assert scene.coordinator.strangers == 1
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        while True:  # what it said last may have been unread
            stranger.sendall(b"x")


def test_one_that_does_not_say_its_whole_name_holds_nobody_up(scene):
    scene.die("b")
    slow = scene.say(b'{"name": ')
    assert scene.coordinator.newcomers() == []
    slow.sendall(b'"b"}\n')
    assert scene.coordinator.newcomers() == ["b"]
    assert scene.coordinator.strangers == 0
    scene.coordinator.tell("b", "join")
    assert json.loads(slow.makefile().readline()) == {"go": "join"}


def test_one_that_is_turned_away_may_come_again(scene):
    scene.die("b")
    scene.come("b")
    assert scene.coordinator.newcomers() == ["b"]
    scene.coordinator.turn_away("b")
    with pytest.raises(CoordinationError, match="server: closed"):
        scene.followers["b"].wait_at_the_door()
    assert scene.coordinator.lost == {"b": "b: closed its connection"}
    scene.come("b")
    assert scene.coordinator.newcomers() == ["b"]


def test_those_at_the_door_do_not_replace_the_last_worker(tmp_path):
    scene = Scene(tmp_path, "a", "b")
    scene.die("b")
    scene.come("b")
    assert scene.coordinator.newcomers() == ["b"]
    scene.die("a")
    with pytest.raises(CoordinationError, match="a: closed its connection"):
        scene.coordinator.gather("idle")


def test_without_taking_back_the_door_is_closed(tmp_path):
    scene = Scene(tmp_path, "a", "b", take_back=False)
    assert scene.coordinator.newcomers() == []
    with pytest.raises(ConnectionRefusedError):
        scene.come("b")


def test_a_worker_that_is_dropped_while_it_lives_hears_the_end(scene):
    scene.coordinator.drop("b", "silent for 30 s")
    with pytest.raises(CoordinationError, match="server: closed its connection"):
        scene.followers["b"].wait("compute")


@pytest.mark.parametrize("said", [b"no json\n", b"[1]\n", b"[" * 3000 + b"\n"])
def test_a_worker_that_says_no_object_is_lost_and_ends_nobody_else(tmp_path, said):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        line = coordination._Line(ours)
        theirs.sendall(said)
        with pytest.raises(CoordinationError, match="worker-1: sent no JSON object"):
            line.receive("worker-1")
