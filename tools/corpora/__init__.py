"""Corpora for demos, tests and benchmarks: planted, of pictures, of documents."""
