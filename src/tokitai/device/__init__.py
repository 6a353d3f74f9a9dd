"""Where kernels run: loading, launching, buffers, and what this machine is able to do."""
