"""Feature files, sets of rows, precision and preprocessing."""
