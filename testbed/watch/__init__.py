"""`./lab watch`: finds the run in progress (`follow`) and draws it in the terminal (`screen`).

It only reads run directories and their `live.json`, and imports nothing but shared. To add a
value: write it in `sampling.__main__`, draw it in `screen`.
"""
