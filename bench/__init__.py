"""Time the operators on this machine, beside PyTorch's: ``python -m bench.run``."""
