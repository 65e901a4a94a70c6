"""One file per command, one function in each: the only place that sees both data and accounting.

Every function returns plain data for the command line to print and prints nothing itself.
"""
