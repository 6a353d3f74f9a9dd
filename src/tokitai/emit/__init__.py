"""From a plan to source: C++ for the CPU, over headers that say what a value is."""
