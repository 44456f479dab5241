"""Training of each predictor: a file of its name with `train(data, seed, progress, scratch) -> Weights`."""
