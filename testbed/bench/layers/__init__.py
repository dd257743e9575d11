"""How much loss each tensor of a training bears, `./lab profile-layers`.

`losses` loses a tensor's chunks, `training` trains with that, `rule` says what a tensor bears,
`ladder` climbs, `console` prints, `written` makes the file that the preset `plot` takes. May import
what `testbed.bench` may, and `testbed.experiment`. To add a rule: one in `rule`, and say so in
`docs/how-to/tolerance.md`.
"""
