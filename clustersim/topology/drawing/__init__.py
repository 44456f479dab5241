"""Clusters as pictures (SVG, PNG)."""
