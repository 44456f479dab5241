"""What is measured beside single kernels: launches, copies to and from the host, layers, training steps. One file a kind.

`run(trial, device, watch)` returns the row of a trial: seconds, and what else there is to say.
"""
