"""`./lab watch`: finds the run in progress (`follow`) and draws it in the terminal (`screen`).

It only reads run directories, and may import nothing but shared. To add a value: write it in
`verdict.sampler`, draw it in `screen`.
"""
