"""Arguments and options that several verbs have, each with its one help text."""

from __future__ import annotations

import re
from typing import Annotated

from cyclopts import Parameter

FLAT = Parameter(name="*", parse=re.compile("^(?!client$)"))
"""Makes each field of a dataclass an option of its own name, except ``client``, an object."""
ModelPath = Annotated[str, Parameter(help="Run folder or model file.")]
StorePath = Annotated[str, Parameter(help="Store: a folder or a URL.")]
AsJson = Annotated[bool, Parameter(help="Print the result as one JSON object, for programs.")]
ImageSize = Annotated[
    str | None,
    Parameter(help="Draw rows as images of this size, such as 28x28 or 32x32x3."),
]
