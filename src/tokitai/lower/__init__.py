"""What follows from a graph alone, whatever its family: host scalars, ranges of values, GPU schedules."""
