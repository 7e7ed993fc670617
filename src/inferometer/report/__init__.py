"""Predictions, runs and scores as people read them."""
