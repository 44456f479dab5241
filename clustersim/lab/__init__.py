"""What a forecast does not need: measuring GPUs, training and judging predictors, reproducing papers."""
