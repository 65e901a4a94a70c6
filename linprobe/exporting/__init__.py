"""A trained probe in the formats of other software, one per file. Each function returns the bytes of a file."""
