"""Clipped sums of per-example gradients, on the host or a GPU."""
