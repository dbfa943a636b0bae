"""Generation with log-probs, and the update of the weights that generate."""
