"""Tries the elementary functions at all 2^32 f32 inputs: ``python -m tools.prove_elementary [names...]``."""
