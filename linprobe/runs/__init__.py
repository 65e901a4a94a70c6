"""A run on disk: its folder and its manifest."""
