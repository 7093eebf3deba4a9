"""Measured works: their programs, comparisons and targets."""
