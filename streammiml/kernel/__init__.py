"""Arithmetic: plain functions of arrays, compiled without the GIL.

Of our own modules, this folder imports ``_base/compiled`` and ``_base/hashing`` only.
"""

from streammiml._base.compiled import exact, inlined, inner, njit

__all__ = ["exact", "inlined", "inner", "njit"]
