"""`python -m mdp` is `mdp`."""

from __future__ import annotations

from mdp.cli import main

main()
