"""A model as kernels: layer → operators → kernels, as one tensor-parallel rank runs them."""
