"""Figures of models, attacks and comparisons, from scores and counts."""
