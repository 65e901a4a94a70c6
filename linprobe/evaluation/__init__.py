"""What finished runs are used for: predictions, attacks, audits, comparisons, exports and histograms."""
