"""How long operators take on this machine, in turns with a copy of as many bytes and with their counterparts.

`workload` makes the inputs, `count` says what a call moves and computes, `timing` takes turns, `measure` makes one
record of it, `report` keeps records and shows them as a table and as a plot.
"""
