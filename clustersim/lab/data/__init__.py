"""Measured kernels: their sources and readers."""
