"""A sweep on several machines, by way of Dask's scheduler: `./lab run NAME --scheduler ADDRESS`.

May import all rooms but the verbs and the documentation; only `scheduler` imports Dask. To add
other means: a class with the methods of `Scheduler`.
"""
