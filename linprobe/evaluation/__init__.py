"""What finished runs are used for: predictions, attacks, audits, comparisons, releases, exports and histograms."""
