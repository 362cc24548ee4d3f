"""Bags in flight: which are read when, within which memory."""
