"""AMD GPUs: clang compiles and inspects kernels for them; none is run yet."""
