"""Everything that needs PyTorch: imported by nothing else before it is asked for."""
