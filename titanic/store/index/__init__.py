"""Index of all stored requests, kept in memory and rebuilt from the journal."""
