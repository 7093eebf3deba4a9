"""`python -m core` is `zmtp`."""

from __future__ import annotations

from core.cli import main

main()
