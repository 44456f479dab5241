"""`clustersim serve`: results in a browser, and runs from a form. It shows pages of `pages/`, and runs commands."""

PROGRESS = "CLUSTERSIM_PROGRESS"
"""The variable of the environment that asks a command for lines on standard error, one for each step under way.

1: all; 0: none, however long it takes.
"""
PROGRESS_LINE = "progress: "
"""How such a line begins, as in `progress: simulate 40%`."""
