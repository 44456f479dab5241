"""Measured kernels: where they come from and how they are read."""
