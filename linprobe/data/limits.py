"""Limits of what a file may hold, so that a small hostile file cannot ask for large memory."""

MOST_LABELS = 4096  # of a row
MOST_CLASSES = 100_000
LONGEST_NAME = 1_024  # characters of a class name
LONGEST_ID = 4_096  # bytes of a record id: a path has at most these on Linux
LONGEST_TEXT = 1 << 20  # characters of a description's text
MOST_COMPRESSED = 100  # times that stored bytes may grow when they are read; rows of features shrink to a tenth at best
SMALL = 1 << 26  # bytes that may come from fewer stored ones, whatever the ratio: labels compress very well


def too_large(declared: int, stored: int) -> bool:
    """Whether `declared` bytes are more than `stored` bytes of a file can stand for."""
    return declared > max(SMALL, MOST_COMPRESSED * stored)
