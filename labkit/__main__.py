"""`python -m labkit`: the command line, for hosts where the script is not installed."""

from labkit.cli import main

main()
