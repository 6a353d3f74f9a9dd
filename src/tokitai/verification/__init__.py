"""Suites, comparison, proofs, verdict: does a kernel compute its definition?"""

from .verdict import Verdict, verify

__all__ = ["Verdict", "verify"]
