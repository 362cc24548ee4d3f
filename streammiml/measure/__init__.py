"""Predictions and metrics, chunk-wise."""
