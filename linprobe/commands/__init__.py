"""One file per command, named as the command line names it: the only place that sees both data and accounting.

Every function returns plain data for the command line to print and prints nothing itself.
"""
