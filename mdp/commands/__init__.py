"""The `mdp` command."""
