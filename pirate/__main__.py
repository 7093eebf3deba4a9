"""`python -m pirate` is `pirate`."""

from __future__ import annotations

from pirate.cli import main

main()
