"""Predictions and metrics, computed block by block."""
