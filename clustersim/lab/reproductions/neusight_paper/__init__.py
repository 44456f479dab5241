"""How the published NeuSight predictor learns."""
