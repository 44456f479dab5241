"""Model → layers → operators → kernels under tensor parallelism; the device mesh; memory by kind.

`load` reads a file into a checked `Job`; `Job.place` fits it to a cluster; `stages` says what each pipeline stage runs;
`memory`, `flops` and `optimizer` follow from those.
"""
