"""Bags on disk: what a store is, how it is written, read and checked."""
