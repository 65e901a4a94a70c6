"""Sources of images, one kind per file. They do not decode images."""
