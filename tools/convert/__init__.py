"""Foreign files to stores and back: ``convert``, ``verify --source`` and ``export``."""

from streammiml_tools.convert.conversion import Converted, convert
from streammiml_tools.convert.plan import ConvertConfig

__all__ = ["ConvertConfig", "Converted", "convert"]
