"""NCCL's own choice of algorithm, protocol and channels, from its tuner (NVIDIA/nccl, src/graph/tuning.cc and search.cc)."""
