"""Methods for tests of comparisons; other processes import them from here."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from streammiml.errors import StoreError, StreammimlError
from streammiml.rivals.registry import Method


class Said(NamedTuple):
    """The same fields as those of a rival's scores."""

    value: np.ndarray
    predicted: np.ndarray
    key_rows: np.ndarray | None


class Contender:
    """Scores labels by how many training bags carry them; ``shift`` makes it worse."""

    def __init__(self, *, shift=0, **_):
        self.shift = shift

    def fit(self, store):
        _, labels = store.labels(0, store.n_bags)
        self.counts = np.roll(np.bincount(labels, minlength=store.n_labels), self.shift)
        return self

    def scored(self, store):
        value = np.tile(self.counts - self.counts.mean(), (store.n_bags, 1))
        return Said(value, value > 0, np.zeros(value.shape, np.int64))


class Slow(Contender):
    def fit(self, store):
        if store.n_bags > 20:
            time.sleep(600)
        return super().fit(store)


class Refusing(Contender):
    def fit(self, store):
        raise StreammimlError(f"it would hold 7 TiB for {store.n_bags} bags")


class Lacking(Contender):
    """Needs a file, as others need a package."""

    def __init__(self, **settings):
        super().__init__(**settings)
        if not Path(os.environ["CONTENDER_PACKAGE"]).exists():
            raise StreammimlError("it needs a package: pip install 'streammiml[peers]'")


class Failing(Contender):
    def scored(self, _):
        raise ZeroDivisionError("a bug of the method")


class Unreadable(Contender):
    def fit(self, _):
        raise StoreError("the store is damaged")


class Endless(Contender):
    def scored(self, store):
        said = super().scored(store)
        return said._replace(value=said.value * np.inf)


CLASSES: dict[str, Any] = {
    "frequent": Contender,
    "keyless": Contender,
    **{c.__name__.lower(): c for c in (Slow, Refusing, Lacking, Failing, Unreadable, Endless)},
}


class ContenderMethod(Method):
    """A method that is made from a class of this module."""

    def make(self, **settings):
        return CLASSES[self.name](**settings)


def cost_of_bags(n_bags, *_):
    """One MiB a bag."""
    return n_bags << 20


def contender(name, *, grid=({},), has_key_instances=True):
    return ContenderMethod(
        name=name,
        title=f"The {name}",
        home="",
        grid=grid,
        cost=cost_of_bags,
        has_key_instances=has_key_instances,
    )
