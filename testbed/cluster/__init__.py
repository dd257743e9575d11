"""A sweep on several machines, by way of Dask's scheduler: `./lab run NAME --scheduler ADDRESS`.

`scheduler` gives blocks of runs to workers and takes results; only this file imports Dask, which
tries again elsewhere what a worker is lost with. `worker` is called on another machine; it starts
`block` as a process, which executes the runs. `block` unpacks what comes back, too.

May import all rooms but the verbs and the documentation. To add other means than Dask: a class with
the methods of `Scheduler`.
"""
