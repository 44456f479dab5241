"""Many simulations: a space of splits, its legal points, a runner of processes, a ranked table.

Not called `sweep`, because an imported folder would replace `clustersim.sweep`, which is a function.
"""
