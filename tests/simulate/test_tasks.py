"""Programs in virtual time: who runs when, what they say to each other, and how they end."""

import functools
import threading

import pytest

from testbed.simulate.engine import Simulation
from testbed.simulate.streams import Listener, Stream
from testbed.simulate.tasks import Tasks


def run(**programs):
    simulation = Simulation()
    tasks = Tasks(simulation)
    for name, program in programs.items():
        tasks.start(name, functools.partial(program, simulation, tasks))
    try:
        simulation.run(done=lambda: tasks.over)
    finally:
        tasks.cancel()
    return simulation


def test_they_sleep_side_by_side_and_wake_in_order():
    heard = []

    def sleeper(*times_s):
        def program(simulation, tasks):
            for time_s in times_s:
                tasks.sleep(time_s)
                heard.append(simulation.now_s)

        return program

    assert run(a=sleeper(3.0, 3.0), b=sleeper(1.0, 4.0)).now_s == 6.0
    assert heard == [1.0, 3.0, 5.0, 6.0]


def test_streams_carry_lines_and_tell_of_their_end():
    heard: list[object] = []
    rooms: dict[str, Listener] = {}

    def server(simulation, tasks):
        rooms["door"] = listener = Listener(tasks)
        stream, _ = listener.accept()
        heard.extend((stream.readline(100), simulation.now_s))
        heard.append(stream.readline(100))

    def worker(simulation, tasks):
        tasks.sleep(2.0)
        stream = rooms["door"].connect()
        stream.sendall(b"one\n")
        stream.close()

    run(server=server, worker=worker)
    assert heard == [b"one\n", 2.0, b""]
    one, two = Stream.pair(Tasks(Simulation()))
    two.close()
    with pytest.raises(BrokenPipeError):
        one.sendall(b"too late\n")


def test_an_error_ends_the_run_and_no_program_is_left_behind():
    before = {*threading.enumerate()}

    def fails(simulation, tasks):
        tasks.sleep(1.0)
        raise ValueError("this one")

    with pytest.raises(ValueError, match="this one"):
        run(fails=fails, waits=lambda simulation, tasks: tasks.sleep(9.0))
    assert {*threading.enumerate()} <= before


def test_programs_that_wait_for_each_other_are_told_apart_from_those_that_ended():
    simulation = Simulation()
    tasks = Tasks(simulation)
    one, two = Stream.pair(tasks)
    heard: list[bytes] = []
    tasks.start("a", lambda: heard.append(one.readline(10)))
    tasks.start("b", lambda: heard.append(two.readline(10)))
    simulation.run(done=lambda: tasks.over)
    assert not tasks.over
    tasks.cancel()
    assert tasks.over
