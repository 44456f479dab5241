"""Plots of the errors of predictors: SVG pages and PNG files."""
