"""Figures against a physical limit or a peer, in one run; ``python -m benchmarks``."""
