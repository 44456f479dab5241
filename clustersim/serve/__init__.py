"""`clustersim serve`: results in a browser, and commands from forms. It shows pages of `pages/` and runs commands."""

PROGRESS = "CLUSTERSIM_PROGRESS"
"""Environment variable that makes a command print progress lines on standard error: 1 always, 0 never."""
PROGRESS_LINE = "progress: "
"""Prefix of a progress line, as in `progress: simulate 40%`."""
