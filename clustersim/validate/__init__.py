"""Forecasts against measured steps: a CSV of published runs → the same runs simulated, their errors and their intervals."""
