"""A mixture of experts that reads text, trained on tokitai's operators: the same weights, to the bit, on any device."""
