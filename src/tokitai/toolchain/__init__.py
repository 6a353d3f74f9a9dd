"""From source to a binary: which compiler, which flags, and a cache that never hands out anything else."""
