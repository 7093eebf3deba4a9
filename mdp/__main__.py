"""`python -m mdp` is `mdp`."""

from __future__ import annotations

from mdp.commands.main import main

main()
