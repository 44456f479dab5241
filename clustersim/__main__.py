"""`python -m clustersim` is the command `clustersim`."""

from clustersim.cli.main import main

main()
