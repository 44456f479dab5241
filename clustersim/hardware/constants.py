"""Physical constants that no datasheet of a GPU or node has."""

FIBRE = 5e-9
"""Seconds that light takes for a metre of fibre: 3.3 ns in vacuum times the group index of glass, 1.47 (Corning SMF-28), rounded
up. Copper takes 4.2 to 5 ns."""
