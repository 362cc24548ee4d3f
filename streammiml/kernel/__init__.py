"""Arithmetic: plain functions of arrays, compiled without the GIL. Imports nothing of ours."""

from streammiml.jit import inlined, inner, njit

__all__ = ["inlined", "inner", "njit"]
