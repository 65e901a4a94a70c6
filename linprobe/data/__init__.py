"""Rows: feature files, arrays, precision, preprocessing."""
