"""A trained probe in the formats of other software."""
