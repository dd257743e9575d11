"""The testbed's rooms, from the top down; each imports only rooms below it (pyproject.toml checks).

    cli           the verbs of `./lab`, their options, what the terminal shows
    cluster       a sweep on several machines, by way of Dask
    bench         benchmarks of the transport, and the study of how much loss training bears
    machine       what this machine can do, and what labs left behind on it
    scripting     the lab from Python, and Mininet's prompt inside one
    watch         the view of a run in progress
    run           from a planned run to a finished run directory
    experiment    YAML files, their schema, and their expansion into runs
    ddp           a hook for DistributedDataParallel, without the lab
    capture       recording links, and reading captures
    workload      programs of a user's own on the hosts, in place of training
    training      the workload: server, workers, models, data
    verdict       whether a run can be believed: calibration, samples, counters, gates
    lab           the emulated network (below `controllers`, which hurts it)
    simulate      the transport in virtual time, over links that misbehave
    transport     bounded-loss gradient transport; knows nothing of the lab
    shared        what several rooms need: the run directory's format, YAML input, event logs

`documentation` shows all of them in the site. The packages `controllers`, `topologies` and
`analysis` lie beside this one. To add a room: a package here, and its place in the layers of
pyproject.toml.
"""
