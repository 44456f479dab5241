"""A whole model on one GPU: its PyTorch operators, the kernels they launch when run eagerly, and how long those take."""
