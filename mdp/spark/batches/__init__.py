"""Rows of a dispatch in batches: Arrow tables to services that accept them."""
