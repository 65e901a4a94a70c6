"""Threads, processes and memory, independent of what is computed."""
