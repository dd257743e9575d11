"""The tolerance study, `./lab bench tolerance`: how much loss training bears, without a network.

`grid` says what is trained, `simulation` trains it, `findings` compares. May import what
`testbed.bench` may. To add a task: a `Study` in `grid`.
"""
