"""Sums of rows over the entries of a table that they choose."""
