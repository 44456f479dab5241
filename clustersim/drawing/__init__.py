"""Pictures: shapes on a canvas, and what writes them as SVG, PNG or PDF."""
