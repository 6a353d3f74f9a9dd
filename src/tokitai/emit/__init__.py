"""From a plan to source text: C++ for the CPU, over headers that say what a value is."""
