"""Collectives: each algorithm as steps on chunks (checked by the proof) and as phases of bytes over pairs of ranks.

Each file of `algorithms/` is one algorithm. `nccl/` models NCCL's own choice of algorithm and protocol.
"""
