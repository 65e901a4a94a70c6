"""One file a command, named as the command line names it; the only place that sees both data and accounting.

Every function returns plain data for the command line to print; none prints anything itself.
"""
