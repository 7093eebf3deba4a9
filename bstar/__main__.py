"""`python -m bstar` is `bstar`."""

from __future__ import annotations

from bstar.cli import main

main()
