"""The version of clustersim, which results name; a file of its own, for what the package itself imports."""

__version__ = "0.2.0"
"""Version in pyproject.toml."""
