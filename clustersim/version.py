"""The version of clustersim, which results name; a file of its own, for what the package itself imports."""

__version__ = "0.1.0"
"""That of pyproject.toml."""
