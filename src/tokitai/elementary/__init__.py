"""Elementary functions as fixed sequences of primitives."""
