"""Element-wise kernels over one tensor, or over a list of any number of them."""
