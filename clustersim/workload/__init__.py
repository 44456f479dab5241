"""Model → layers → operators → kernels under tensor parallelism; the device mesh; memory by kind."""
