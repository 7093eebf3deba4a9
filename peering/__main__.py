"""`python -m peering` is `peering`."""

from __future__ import annotations

from peering.cli import main

main()
