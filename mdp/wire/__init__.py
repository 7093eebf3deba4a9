"""The frames of MDP 0.1, 0.2 and 0.3 (RFC 7, RFC 18, specs/mdp.md)."""
