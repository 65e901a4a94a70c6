"""A run on disk: its folder, its manifest, and its metrics on test rows."""
