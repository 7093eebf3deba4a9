"""`dispatch`: rows of a DataFrame answered by workers."""
