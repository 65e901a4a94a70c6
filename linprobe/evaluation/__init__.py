"""Accuracy, membership attacks, audits and comparisons of trained probes."""
