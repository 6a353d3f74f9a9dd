"""Grouped GEMM: a product for each group of rows, or with the K dimension in groups."""
