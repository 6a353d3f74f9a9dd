#error "the simulated device is missing"
