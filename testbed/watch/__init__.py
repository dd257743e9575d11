"""`./lab watch`: finds the run in progress (`follow`) and draws it in the terminal (`screen`).

It reads run directories only. A value more: write it in `verdict.sampler`, draw it in `screen`.
"""
