"""The only code that computes releases from private rows: clip, sum, add noise."""
