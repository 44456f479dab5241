"""Descriptions of clusters in the formats of other programs."""
