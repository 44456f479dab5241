"""Forecasts compared with measured steps: a CSV of published runs is simulated, with errors and intervals."""
