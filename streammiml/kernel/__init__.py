"""Arithmetic: plain functions of arrays, compiled without the GIL. Imports nothing of ours."""

from streammiml.jit import njit

__all__ = ["njit"]
