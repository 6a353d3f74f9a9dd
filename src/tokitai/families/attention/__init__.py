"""Attention: products of queries and keys, what is made of them along each row, and weighted sums."""
