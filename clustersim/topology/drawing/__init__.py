"""Clusters as pictures (SVG)."""
