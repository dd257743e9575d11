"""A sweep on several machines, by way of Dask's scheduler: `./lab run NAME --scheduler ADDRESS`.

`sharing` is the loop: it gives blocks of runs to workers, takes results, and decides what is tried
again and where. `dask_workers` are those of a scheduler; only this file imports Dask. `worker` is
what Dask calls on another machine; it starts `block` as a process of its own there, which executes
the runs. Results come back as `archive` packs and unpacks them.

May import all rooms but the verbs and the documentation, and `worker`, which must load quickly
anywhere, only `shared`. To add other means than Dask: a class with the methods of
`sharing.Workers`.
"""
