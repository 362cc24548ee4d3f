"""Arguments and options that several verbs have, each with its one help text."""

from __future__ import annotations

import re
from typing import Annotated

from cyclopts import Parameter

FLAT = Parameter(name="*", parse=re.compile("^(?!client$)"))
"""Makes each field of a dataclass an option of its own name, except ``client``, an object."""
FLAT_FLAGS = Parameter(name="*", parse=re.compile("^(?!client$)"), negative_bool="")
"""The same for a dataclass whose flags are off unless given: they need no ``--no-`` form."""
Flag = Annotated[bool, Parameter(negative="")]
"""An option without a value, which is off unless given."""
ModelPath = Annotated[str, Parameter(help="Run folder or model file.")]
StorePath = Annotated[str, Parameter(help="Store: a folder or a URL.")]
AsJson = Annotated[
    bool, Parameter(help="Print the result as one JSON object, for programs.", negative="")
]
ImageSize = Annotated[
    str | None,
    Parameter(help="Draw rows as images of this size, such as 28x28 or 32x32x3."),
]
Coordinates = Annotated[
    str | None,
    Parameter(
        help="Draw row scores where rows lie, by kept columns: one of two numbers (coords), two of "
        "one (x,y), a time, or none. By default: coords, coordinates, xy, the only column of two "
        "numbers, x and y, time, or times."
    ),
]
