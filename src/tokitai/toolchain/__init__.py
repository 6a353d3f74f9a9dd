"""From source text to a binary: which compiler, which flags, and a cache that holds nothing but what it was asked for."""
