"""One function a command; the only place that sees both data and accounting.

Every function returns plain data for the command line to print; none prints anything itself.
"""
