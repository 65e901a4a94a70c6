"""Training: a problem, a method and its options in, weights and their privacy out."""
