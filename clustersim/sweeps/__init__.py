"""Many simulations (`sweeps`, as `clustersim.sweep` is the function): a space of splits, the legal points of it, a runner of processes, a ranked table."""
