"""One file per command, with the name of the command: the only folder that uses both data and accounting.

Every function returns plain data for the command line to print, and prints nothing itself.
"""
