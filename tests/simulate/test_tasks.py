"""Programs in virtual time: who runs when, what they say to each other, and how they end."""

import functools
import threading

import pytest

from testbed.simulate.engine import Simulation
from testbed.simulate.tasks import Stream, Tasks


def run(**programs):
    simulation = Simulation()
    tasks = Tasks(simulation)
    for name, program in programs.items():
        tasks.start(name, functools.partial(program, simulation, tasks))
    try:
        simulation.run(done=lambda: not tasks.running)
    finally:
        tasks.cancel()
    return simulation


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
    lines: list[bytes] = []
    tasks.start("a", lambda: lines.append(one.readline(10)))
    tasks.start("b", lambda: lines.append(two.readline(10)))
    simulation.run(done=lambda: not tasks.running)
    assert tasks.running
    tasks.cancel()
    assert not tasks.running
