"""Streaming of bags: their order, reading ahead, mixing, and the memory that this takes."""
