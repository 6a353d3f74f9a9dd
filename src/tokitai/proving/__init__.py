"""Proofs for all sizes: obligations of kernels and launch plans, discharged by Z3.

Z3 comes with ``pip install "tokitai[proof]"``; nothing else of the package needs it.
"""
