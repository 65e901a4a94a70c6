"""Threads, processes and memory; nothing here knows what is computed."""
