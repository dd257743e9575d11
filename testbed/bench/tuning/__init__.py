"""Learning rates, `./lab tune`: chosen for each arm by a validation part, in virtual time.

`training` trains one arm with one rate, `rule` chooses, `console` prints and writes. May import
what `testbed.bench` may, and `testbed.experiment`. To add a rule: one in `rule`, and say so in
`docs/how-to/learning-rates.md`.
"""
