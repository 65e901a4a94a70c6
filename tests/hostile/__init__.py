"""Hostile input: files made when the tests run, each with the exit statuses that are right for it.

`python -m tests.hostile` runs everything; see `__main__.py`. No hostile file is stored.
"""
