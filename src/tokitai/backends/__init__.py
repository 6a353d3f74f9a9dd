"""Where kernels run: one folder for each kind of device."""
