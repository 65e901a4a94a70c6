"""Clipped sums of per-example gradients, on the host or a GPU: loss, geometry, rounding, back ends."""
