"""Many simulations: a space of splits, the legal points of it, a runner of processes, a ranked table.

Not `sweep`: that is a function of `clustersim`, and an imported folder of the same name would take its place.
"""
