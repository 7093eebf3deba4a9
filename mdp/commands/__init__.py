"""The command `mdp`."""
