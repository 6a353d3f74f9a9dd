"""Matrix products with element-wise work on their result."""
