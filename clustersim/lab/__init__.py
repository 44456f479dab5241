"""Everything that forecasts do not need: measuring GPUs, training and judging predictors, reproducing papers."""
