"""The factorial, `./lab bench factorial`: what of a transfer's order, memory and filling matters?

`design` says what is trained, `training` simulates it; `effects` computes main effects and
interactions, `rates` asks whether a learning rate explains an effect, `report` and `figure` show
both. May import what `testbed.bench` may. To add a task: a `Subject` in `design`.
"""
