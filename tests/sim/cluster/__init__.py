"""A simulator of whole clusters: unmodified product code in virtual time, with a network, disks, clocks and processes that fail.

Everything is drawn from one seed, so a run can be repeated. `docs/testing.md` tells how to write a scenario.
"""
