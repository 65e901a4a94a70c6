"""Measures of a trained probe on rows it was not trained on."""
