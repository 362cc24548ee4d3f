"""Benchmarks that compare streammiml with a physical limit or a peer; ``python -m benchmarks``."""
