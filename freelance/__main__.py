"""`python -m freelance` is `freelance`."""

from __future__ import annotations

from freelance.cli import main

main()
