"""Kernels by other people: is each element as near the real result as rounding explains, and if not, which is not?"""

from .judgement import Failure, Judgement, judge

__all__ = ["Failure", "Judgement", "judge"]
