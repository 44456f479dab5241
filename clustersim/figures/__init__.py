"""Figures for papers and pages: what `show --draw`, `run --timeline` and `plot` write."""
