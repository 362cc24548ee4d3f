"""Arguments and options of the verbs that train: ``train`` and ``tune``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from streammiml._base.atomic import local_input
from streammiml._base.json_and_toml import parse_toml
from streammiml.bags.layout import MANIFEST
from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError, unknown
from streammiml.learn.run_folder import OFFSET, RECORDS
from streammiml.verbs.options import FLAT


class TrainOptions(TrainConfig):
    """Settings that remember which of them were given, also those given as their default."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        object.__setattr__(self, "_given", given)

    def given(self) -> dict[str, Any]:
        """Settings that were given."""
        return dict(self._given)  # type: ignore[attr-defined]


StoresAndFolder = Annotated[str, Parameter(name="STORE... RUN", negative="")]
ConfigFile = Annotated[
    Path | None,
    Parameter(
        help="TOML file with options, named as on the command line; the command line has priority."
    ),
]
Training = Annotated[TrainOptions | None, FLAT]


def stores_and_folder(paths: Sequence[str], verb: str, noun: str) -> tuple[list[str], str]:
    """Split paths into stores and the folder at the end; refuse fewer than two paths."""
    if len(paths) < 2:
        raise StreammimlError(f"{verb} needs a store and a folder for the {noun}")
    if (Path(paths[-1]) / MANIFEST).is_file():
        is_swapped = not (Path(paths[0]) / MANIFEST).is_file()
        order = f"{paths[-1]} {paths[0]}" if is_swapped else f"{' '.join(paths)} {noun}"
        raise StreammimlError(
            f"{paths[-1]} is a store, but the last path is the folder for the {noun}: "
            f"streammiml {verb} {order}"
        )
    return list(paths[:-1]), paths[-1]


def merged(options: TrainOptions | None, file: Path | None) -> TrainOptions:
    """Merge settings: the command line over a file over the defaults."""
    given: dict[str, Any] = {}
    if file is not None:
        path = local_input(file, "settings")
        try:
            given = parse_toml(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise StreammimlError(f"{file} cannot be read: {error}") from None
        known = [field.name for field in fields(TrainConfig)]
        if OFFSET in given:
            # The threshold was fitted on trials, which a run of so many epochs does not need.
            given.pop("threshold", None)
        given = {name: value for name, value in given.items() if name not in RECORDS}
        try:
            for name in given:
                if name not in known:
                    raise unknown("option", name, known)
            TrainOptions(**given)
        except StreammimlError as error:
            raise StreammimlError(f"{file}: {error}") from None
    return TrainOptions(**{**given, **(options.given() if options is not None else {})})
