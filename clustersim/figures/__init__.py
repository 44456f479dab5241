"""Pictures: shapes on a canvas, what writes them as SVG, PNG or PDF, and the figures of clusters, steps, sweeps and kernels."""
