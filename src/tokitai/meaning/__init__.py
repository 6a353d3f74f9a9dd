"""What a graph means: bits, structure, real numbers, error bounds, derivatives."""
