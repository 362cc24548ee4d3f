"""``MIMLfast``: scikit-learn conventions for bags that are in memory already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.layout import ROW_DTYPES
from streammiml.bags.memory import MemoryBags
from streammiml.bags.offsets import from_sizes
from streammiml.config import Rule, TrainConfig, parse_size
from streammiml.errors import StreammimlError
from streammiml.kernel.score import Scores
from streammiml.learn.holdout import Holdout
from streammiml.learn.trainer import train
from streammiml.learn.usual import resolved
from streammiml.learn.validation import open_validation
from streammiml.measure.pieces import whole
from streammiml.measure.ranking import average_precision
from streammiml.measure.rules import predicted
from streammiml.measure.scored import BLOCK_BYTES, scored, scored_blocks
from streammiml.model import LabelRule, Model
from streammiml.scoring import Scorer

try:
    from sklearn.base import BaseEstimator
    from sklearn.utils.validation import check_is_fitted
except ModuleNotFoundError as error:
    raise StreammimlError(
        f"MIMLfast needs scikit-learn ({error}): pip install 'streammiml[sklearn]'"
    ) from None

from scipy import sparse  # It comes with scikit-learn, and so after it.

I64 = NDArray[np.int64]

# How labels came, and so how predictions go.
MATRIX, SPARSE_MATRIX, LISTS, ONE_EACH = "matrix", "sparse matrix", "lists", "one each"
_USUAL = TrainConfig()


class MIMLfast(BaseEstimator):  # type: ignore[misc]
    """Multi-instance multi-label learning of bags in memory, with scikit-learn conventions.

    Bags are a list of arrays (rows, features) or of SciPy sparse matrices, all with the same
    features; an object array of them; an array (bags, rows, features); or, where each bag is one
    row, a matrix (bags, features), dense or sparse. Rows are taken as float32.

    Labels are an indicator matrix (bags, labels), dense or sparse; a list with the labels of each
    bag, names or whole numbers (a bag may have none); or one name or number a bag.

    There is no ``predict_proba``: scores come from a ranking loss and have no scale on which one
    could be read as a probability. ``decision_function`` gives them; where probabilities are
    needed, calibrate these on bags that were not trained on.

    Parameters
    ----------
    shared_dim
        Dimensions of the space that all labels share.
    subconcepts
        Linear models of each label; ones that are not needed stay empty.
    max_norm
        Largest L2 norm of a label's weights and of a column of the shared space.
    step_size
        Size of the first step.
    decay
        How fast steps become smaller.
    average
        Return a mean of the recent iterates instead of the last one.
    shared_space
        Learn the shared space; without it each label is a linear model of the row.
    scale
        ``auto``, ``none``, ``unit``, ``standard``, ``standard+unit`` or ``maxabs``, with ``sqrt:``
        or ``log1p:`` before it for counts and histograms.
    lift
        Features added in flight: ``fourier:N[:BANDWIDTH]``, and ``context``, ``context:all`` or
        ``context:mean``; both with a comma. Of sparse bags, ``context:mean`` alone.
    epochs
        Passes over the training bags at most; unless given, see ``validation``.
    max_steps
        Steps at most.
    patience
        Looks at the held-out bags without a lower ranking loss after which training stops.
    validation
        Share of bags held out for early stopping. Unless given, a tenth of 5000 bags or more. Of
        fewer none is, and cross validation on them says how many epochs to train, where neither
        ``epochs`` nor ``max_steps`` does: ``model_.settings["epochs"]``. Where bags held out could
        not tell one model from another, none is, and ``model_.settings["validation"]`` is 0.
    memory
        What training may hold beside the bags, such as ``2GiB``; more is refused beforehand.
    threads
        Kernel threads; with more than one, results vary from run to run.
    seed
        Of everything random.
    rule
        Who is predicted: labels above the dummy label (``dummy``), above it less a margin of 1
        (``margin``), or the ``top-r``, r being the mean number of labels in training.
    min_labels
        Labels predicted at least; 1 if every training bag has a label, else 0, unless given.

    Attributes
    ----------
    classes_
        (L,) Labels, in the order of columns of all results; column numbers for a matrix.
    n_features_in_
        Features of a row.
    model_
        The trained :class:`Model`. ``model_.save(path)`` writes it as checked safetensors, which
        the command line reads too; prefer that to a pickle of the estimator for keeping.

    Examples
    --------
    A bag is a shore if one of its rows has a high first value, a wood if the second:

    >>> import numpy as np, streammiml as sm
    >>> rng = np.random.default_rng(0)
    >>> bags = [rng.normal(size=(rng.integers(2, 6), 4)) for _ in range(400)]
    >>> names = [[name for j, name in enumerate(["shore", "wood"]) if bag[:, j].max() > 1]
    ...          for bag in bags]
    >>> model = sm.MIMLfast(shared_dim=10, subconcepts=2, epochs=20).fit(bags, names)
    >>> model.classes_.tolist()
    ['shore', 'wood']
    >>> new = [np.array([[3.0, -1, 0, 0], [0, 0, 0, 0]]), np.array([[0.0, 0, 0, 0], [3, 3, 0, 0]])]
    >>> model.predict(new)
    [('shore',), ('shore', 'wood')]
    >>> model.decision_function(new).shape
    (2, 2)
    >>> model.key_instances(new)[1]  # the row that speaks for shore, and that for wood
    array([1, 1])
    """

    def __init__(
        self,
        *,
        shared_dim: int = _USUAL.shared_dim,
        subconcepts: int = _USUAL.subconcepts,
        max_norm: float = _USUAL.max_norm,
        step_size: float = _USUAL.step_size,
        decay: float = _USUAL.decay,
        average: bool = _USUAL.average,
        shared_space: bool = _USUAL.shared_space,
        scale: str = _USUAL.scale,
        lift: str = _USUAL.lift,
        epochs: int | None = _USUAL.epochs,
        max_steps: int | None = _USUAL.max_steps,
        patience: int = _USUAL.patience,
        validation: float | None = _USUAL.validation,
        memory: str = _USUAL.memory,
        threads: int = _USUAL.threads,
        seed: int = _USUAL.seed,
        rule: Rule = _USUAL.rule,
        min_labels: int | None = _USUAL.min_labels,
    ) -> None:
        self.shared_dim = shared_dim
        self.subconcepts = subconcepts
        self.max_norm = max_norm
        self.step_size = step_size
        self.decay = decay
        self.average = average
        self.shared_space = shared_space
        self.scale = scale
        self.lift = lift
        self.epochs = epochs
        self.max_steps = max_steps
        self.patience = patience
        self.validation = validation
        self.memory = memory
        self.threads = threads
        self.seed = seed
        self.rule = rule
        self.min_labels = min_labels

    def fit(self, bags: Any, y: Any) -> MIMLfast:
        """Train anew on these bags and labels; stops early, see ``validation``.

        Examples
        --------
        >>> import numpy as np, streammiml as sm
        >>> bags = np.random.default_rng(0).normal(size=(100, 3, 5))  # 100 bags of 3 rows
        >>> Y = (bags.max(axis=1) > 1)[:, :2]  # an indicator matrix of two labels
        >>> sm.MIMLfast(shared_dim=8, epochs=2).fit(bags, Y).predict(bags).shape
        (100, 2)
        """
        config = self._config()
        block = _block_of(bags)
        labels = _labels_of(y, None)
        held = _held(block, labels)
        usual = resolved(config, held.n_bags)
        if usual.validation and not _can_be_looked_at(usual, held):
            config = replace(usual, validation=0.0)
        self.model_ = train(held, config)
        self._seen, self._passes = _Seen().and_of(held), 1
        self._learned(held, labels)
        return self

    def partial_fit(self, bags: Any, y: Any, classes: Sequence[Any] | None = None) -> MIMLfast:
        """One more pass, over these bags: of a model that was fitted, or of a new one.

        Scaling and lift are those of the first call, whose bags should be a fair sample. Step size
        and means of iterates begin anew with every call, so a few large batches do better than
        many small ones. No bags are held out.

        Parameters
        ----------
        bags
            As for ``fit``, with the features of the first call.
        y
            As for ``fit``; the labels are those of the first call.
        classes
            All labels there will be, needed in the first call where ``y`` is no matrix.

        Examples
        --------
        >>> import numpy as np, streammiml as sm
        >>> rng = np.random.default_rng(0)
        >>> model = sm.MIMLfast(shared_dim=8)
        >>> for _ in range(3):
        ...     bags = [rng.normal(size=(3, 5)) for _ in range(50)]
        ...     names = [["high"] if bag.max() > 1.5 else ["low"] for bag in bags]
        ...     model = model.partial_fit(bags, names, classes=["high", "low"])
        >>> model.classes_.tolist()
        ['high', 'low']
        """
        before: Model | None = getattr(self, "model_", None)
        block = _block_of(bags)
        if before is not None:
            self._check_features(block)
        labels = _labels_of(y, self._classes_for(y, classes))
        held = _held(block, labels)
        passes = 0 if before is None else self._passes
        seen = (_Seen() if before is None else self._seen).and_of(held)
        # Another seed for each pass: the draws of a step are a function of seed and number.
        config = self._config()
        config = replace(config, epochs=1, validation=0.0, seed=config.seed + passes)
        found = train(held, config, start=before)
        self.model_ = replace(found, rule=seen.rule(config))
        self._seen, self._passes = seen, passes + 1
        self._learned(held, labels)
        return self

    def predict(self, bags: Any) -> Any:
        """Labels of each bag, in the form in which ``fit`` got them.

        An indicator matrix (n, L) of 0 and 1, sparse if it was; or a list of tuples of names (or
        numbers), in the order of ``classes_``; or, for one label a bag, an array of the highest.
        """
        found = self._scored(bags)
        if self._form == ONE_EACH:
            best = np.concatenate([scores.value[:, :-1].argmax(axis=1) for scores in found])
            return self.classes_[best]
        rule = self.model_.rule
        chosen = np.concatenate(
            [predicted(rule, scores.value[:, :-1], scores.value[:, -1]) for scores in found]
        )
        if self._form == MATRIX:
            return chosen.astype(np.int64)
        if self._form == SPARSE_MATRIX:
            return sparse.csr_matrix(chosen, dtype=np.int64)
        names = self.classes_.tolist()
        return [tuple(names[label] for label in np.flatnonzero(row)) for row in chosen]

    def decision_function(self, bags: Any) -> NDArray[np.float64]:
        """(n, L) Scores less that of the dummy label: above 0, the rule ``dummy`` predicts."""
        # In float64 the difference is exact, so that no two labels become level by it.
        values = np.concatenate([scores.value for scores in self._scored(bags)], dtype=np.float64)
        found: NDArray[np.float64] = values[:, :-1] - values[:, -1:]
        return found

    def key_instances(self, bags: Any) -> I64:
        """(n, L) The row of each bag that gives it its score on each label."""
        found = [scores.row[:, :-1] for scores in self._scored(bags)]
        return np.concatenate(found, dtype=np.int64)

    def key_subconcepts(self, bags: Any) -> I64:
        """(n, L) The sub-concept of each label by which its key instance got the score."""
        found = [scores.subconcept[:, :-1] for scores in self._scored(bags)]
        return np.concatenate(found, dtype=np.int64)

    def score(self, bags: Any, y: Any) -> float:
        """Label ranking average precision, from 0 to 1; bags with no label or all count as 1.

        What ``sklearn.metrics.label_ranking_average_precision_score`` makes of
        ``decision_function``. For another metric, give ``GridSearchCV`` and others a ``scoring``.
        """
        block = self._scorable(bags)
        held = _held(block, _labels_of(y, self.classes_))
        rule, metric = self.model_.rule, average_precision
        parts = (metric.block(scored(rule, *part)) for part in self._scored_blocks(held))
        return float(metric.finish(reduce(metric.combine, parts)).value)

    def __sklearn_tags__(self) -> Any:
        # No classifier by its tags: scikit-learn would then refuse lists of labels.
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.one_d_labels = tags.target_tags.two_d_labels = True
        tags.input_tags.sparse = tags.input_tags.three_d_array = True
        tags.non_deterministic = self.threads != 1
        return tags

    def _config(self) -> TrainConfig:
        """The parameters as settings, checked; NumPy's numbers, as grids have them, are fine."""
        given = self.get_params(deep=False)
        plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in given.items()}
        return TrainConfig(**plain)

    def _classes_for(self, y: Any, classes: Sequence[Any] | None) -> NDArray[Any] | None:
        """Labels that a further pass must keep to, or a first one was told; None for any."""
        named = None if classes is None else _classes_of(classes)
        if not hasattr(self, "model_"):
            if named is None and not _is_matrix(y):
                raise StreammimlError(
                    "the first partial_fit needs classes=, all labels there will be, "
                    "or an indicator matrix"
                )
            return named
        if named is not None and named.tolist() != self.classes_.tolist():
            raise StreammimlError(
                f"classes are {len(named)} labels, other than the {len(self.classes_)} of the "
                "first call; leave them out, or fit anew"
            )
        return self.classes_

    def _learned(self, held: MemoryBags, labels: _Labels) -> None:
        self.classes_, self._form = labels.classes, labels.form
        self.n_features_in_ = held.n_features

    def _check_features(self, block: BagBlock) -> None:
        if block.n_features != self.n_features_in_:
            raise StreammimlError(
                f"bag 0 of X has {block.n_features} features, but {type(self).__name__} is "
                f"expecting {self.n_features_in_} features as input"
            )

    def _scorable(self, bags: Any) -> BagBlock:
        """Bags that the model can be asked about."""
        check_is_fitted(self)
        block = _block_of(bags)
        self._check_features(block)
        if isinstance(block.rows, SparseRows) and self.model_.needs_dense_rows:
            raise StreammimlError(
                "the model was fitted on dense bags and these are sparse; "
                "give [bag.toarray() for bag in bags]"
            )
        return block

    def _scored_blocks(self, held: MemoryBags) -> Iterator[tuple[BagBlock, Scores]]:
        """All bags with their scores, some at a time."""
        piece, size = whole(held, remote=False), parse_size(BLOCK_BYTES)
        for _, block, found in scored_blocks(piece, Scorer(self.model_), size):
            yield block, found

    def _scored(self, bags: Any) -> Iterator[Scores]:
        held = MemoryBags(self._scorable(bags), n_labels=len(self.classes_))
        return (found for _, found in self._scored_blocks(held))


class _Seen(NamedTuple):
    """Counts over all bags trained on, which decide the rule."""

    n_bags: int = 0
    n_pairs: int = 0
    n_unlabelled: int = 0

    def and_of(self, held: MemoryBags) -> _Seen:
        """With these bags added."""
        offsets, _ = held.labels(0, held.n_bags)
        return _Seen(
            self.n_bags + held.n_bags,
            self.n_pairs + held.n_label_entries,
            self.n_unlabelled + int((np.diff(offsets) == 0).sum()),
        )

    def rule(self, config: TrainConfig) -> LabelRule:
        return LabelRule.fitted(config.rule, config.min_labels, **self._asdict())


class _Labels(NamedTuple):
    """Labels of bags as numbers; those of bag i are ``offsets[i]`` to ``[i + 1]``, in any order."""

    offsets: I64
    indices: NDArray[np.int32]
    classes: NDArray[Any]
    form: str


def _can_be_looked_at(config: TrainConfig, held: MemoryBags) -> bool:
    """Whether the bags that would be held out can tell one model from another."""
    try:
        open_validation(config, held, Holdout.of(config.validation or 0.0, held.n_bags))
    except StreammimlError:
        return False
    return True


def _held(block: BagBlock, labels: _Labels) -> MemoryBags:
    """Bags with their labels, to be trained on."""
    _check_as_many(len(block), labels)
    numbered = labels.form in (MATRIX, SPARSE_MATRIX) and labels.classes.dtype.kind == "i"
    names = None if numbered else [str(name) for name in labels.classes.tolist()]
    block = replace(block, label_offsets=labels.offsets, label_indices=labels.indices)
    return MemoryBags(block, n_labels=len(labels.classes), label_names=names)


def _check_as_many(n_bags: int, labels: _Labels) -> None:
    if n_bags != len(labels.offsets) - 1:
        raise StreammimlError(f"there are {n_bags} bags, and labels of {len(labels.offsets) - 1}")


def _block_of(bags: Any) -> BagBlock:
    """Bags without labels, in whatever form they came."""
    if sparse.issparse(bags):
        return _unlabelled(bags, np.ones(bags.shape[0], np.int64))
    if isinstance(bags, list | tuple):
        return _joined(bags)
    array = np.asarray(bags)
    if array.ndim == 1 and array.dtype == object:
        return _joined(list(array))
    if array.ndim == 2:
        return _unlabelled(array, np.ones(len(array), np.int64))
    if array.ndim == 3:
        n_bags, n_rows, n_features = array.shape
        rows = array.reshape(n_bags * n_rows, n_features)
        return _unlabelled(rows, np.full(n_bags, n_rows))
    raise StreammimlError(
        f"bags are an array of {array.ndim} dimensions, expected a list of arrays (rows, features) "
        "or an array of 3 dimensions, or of 2 for bags of one row. Reshape your data"
    )


def _joined(bags: Sequence[Any]) -> BagBlock:
    """Bags end to end; the first decides features, and whether rows are sparse."""
    found = [bag if sparse.issparse(bag) else _array_of(bag, i) for i, bag in enumerate(bags)]
    for number, bag in enumerate(found):
        if bag.ndim != 2:
            raise StreammimlError(
                f"bag {number} has shape {bag.shape}, expected (rows, features); for bags of one "
                "row each give a 2-d array. Reshape your data"
            )
        if sparse.issparse(bag) != sparse.issparse(found[0]):
            raise StreammimlError(
                f"bag {number} is {'sparse' if sparse.issparse(bag) else 'dense'} and bag 0 is "
                "not; give all of one kind"
            )
        if bag.shape[1] != found[0].shape[1]:
            raise StreammimlError(
                f"bag {number} has {bag.shape[1]} features and bag 0 has {found[0].shape[1]}; "
                "all rows need the same ones"
            )
    sizes = np.array([bag.shape[0] for bag in found], np.int64)
    if not found:
        return _unlabelled(np.empty((0, 1), np.float32), sizes)
    if sparse.issparse(found[0]):
        return _unlabelled(sparse.vstack(found, format="csr"), sizes)
    return _unlabelled(np.concatenate(found), sizes)


def _array_of(bag: Any, number: int) -> NDArray[Any]:
    try:
        array = np.asarray(bag)
    except ValueError as error:
        raise StreammimlError(f"bag {number} cannot be made an array: {error}") from None
    return _numbers(array, f"bag {number} holds")


def _unlabelled(rows: Any, sizes: I64) -> BagBlock:
    """Rows of bags of these sizes, of a type that is computed with; refuses what has none."""
    if not len(sizes):
        raise StreammimlError("there are no bags")
    if not sizes.all():
        raise StreammimlError(f"bag {int(sizes.argmin())} has no rows; leave it out")
    if not rows.shape[1]:
        raise StreammimlError(
            f"bag 0 has 0 feature(s) (shape={rows.shape}) while a minimum of 1 is required."
        )
    if sparse.issparse(rows):
        # A copy: explicit duplicates are added up in place.
        rows = rows.tocsr(copy=True)
        rows.sum_duplicates()
        columns = rows.indices.astype(np.uint32)
        offsets = rows.indptr.astype(np.int64)
        kept: Any = SparseRows(offsets, columns, _numbers(rows.data, "bags hold"), rows.shape[1])
    else:
        kept = _numbers(rows, "bags hold")
    nothing = np.zeros(len(sizes) + 1, np.int64)
    return BagBlock(from_sizes(sizes), kept, nothing, np.empty(0, np.int32))


def _numbers(values: NDArray[Any], who_holds: str) -> NDArray[Any]:
    """Small integers and floats as they are, other numbers as floats."""
    if values.dtype == object:
        try:
            values = values.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise StreammimlError(f"{who_holds} values that are no numbers: {error}") from None
    if values.dtype.kind == "c":
        raise StreammimlError(f"{who_holds} {values.dtype} values. Complex data not supported")
    if values.dtype.kind not in "fiub":
        raise StreammimlError(f"{who_holds} {values.dtype} values, expected numbers")
    small = values.dtype.name in ROW_DTYPES or values.dtype.kind == "f"
    return values if small else values.astype(np.float32)


def _is_matrix(y: Any) -> bool:
    """Whether labels came as an indicator matrix; lists of lists are labels by name or number."""
    return sparse.issparse(y) or (not isinstance(y, list | tuple) and np.ndim(y) == 2)


def _labels_of(y: Any, classes: NDArray[Any] | None) -> _Labels:
    """Labels of all bags, of these classes; unless given, of those that occur."""
    if y is None:
        raise StreammimlError("MIMLfast requires y to be passed, but the target y is None")
    if _is_matrix(y):
        return _marked(y, classes)
    entries = list(y)
    several = [isinstance(each, list | tuple | set | frozenset | np.ndarray) for each in entries]
    if any(several) and not all(several):
        odd = several.index(not several[0])
        raise StreammimlError(
            f"the labels of bag {odd} are {entries[odd]!r} and those of bag 0 {entries[0]!r}; give "
            "a list for every bag, or one label for every bag"
        )
    lists = entries if any(several) else [[each] for each in entries]
    named = [[_plain_label(label, bag) for label in each] for bag, each in enumerate(lists)]
    for bag, each in enumerate(named):
        if len(set(each)) != len(each):
            raise StreammimlError(f"bag {bag} has a label twice: {each!r}; {_AS_ARRAY}")
    found = _classes_of([label for each in named for label in each]) if classes is None else classes
    if classes is None and len(found) > 1 and all(len(each) == len(found) for each in named):
        raise StreammimlError(
            f"every bag has all {len(found)} labels, so none can be told apart; {_AS_ARRAY}"
        )
    return _numbered(named, found, LISTS if any(several) else ONE_EACH)


_AS_ARRAY = "an indicator matrix must be an array, as np.array(y) makes it"


def _marked(y: Any, classes: NDArray[Any] | None) -> _Labels:
    """Labels of an indicator matrix."""
    form = SPARSE_MATRIX if sparse.issparse(y) else MATRIX
    values: Any = y.tocsr() if form == SPARSE_MATRIX else np.asarray(y)
    if values.dtype.kind not in "biuf":
        raise StreammimlError(
            f"y is a matrix of {values.dtype}, expected 0 and 1; names come as lists, y.tolist()"
        )
    entries = values.data if form == SPARSE_MATRIX else values
    wrong = entries[(entries != 0) & (entries != 1)]
    if wrong.size:
        raise StreammimlError(
            f"y holds {wrong[0]}, and an indicator matrix holds 0 and 1; numbers of "
            "labels come as a list for each bag"
        )
    if classes is not None and values.shape[1] != len(classes):
        raise StreammimlError(f"y has {values.shape[1]} columns for {len(classes)} labels")
    bags, labels = values.nonzero()
    return _Labels(
        from_sizes(np.bincount(bags, minlength=values.shape[0])),
        labels.astype(np.int32),
        np.arange(values.shape[1]) if classes is None else classes,
        form,
    )


def _numbered(named: list[list[Any]], classes: NDArray[Any], form: str) -> _Labels:
    number_of = {label: number for number, label in enumerate(classes.tolist())}
    for bag, labels in enumerate(named):
        for label in labels:
            if label not in number_of:
                raise StreammimlError(
                    f"bag {bag} has the label {label!r}, which is none of the {len(classes)} "
                    "labels known; an indicator matrix has columns for labels that no bag carries"
                )
    indices = [number_of[label] for each in named for label in each]
    return _Labels(
        from_sizes([len(each) for each in named]), np.array(indices, np.int32), classes, form
    )


def _classes_of(labels: Iterable[Any]) -> NDArray[Any]:
    """Every label once, in order."""
    found = {_plain_label(label) for label in labels}
    names = sorted(each for each in found if isinstance(each, str))
    numbers = sorted(each for each in found if not isinstance(each, str))
    if names and numbers:
        raise StreammimlError(
            f"labels are both names, such as {names[0]!r}, and numbers, such as {numbers[0]}; "
            "give one kind"
        )
    return np.array(names) if names else np.array(numbers, np.int64)


def _plain_label(label: Any, bag: int | None = None) -> str | int:
    """A name or a whole number of Python's own kind."""
    label = label.item() if isinstance(label, np.generic) else label
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    if isinstance(label, bool) or not isinstance(label, str | int):
        where = "classes have" if bag is None else f"bag {bag} has"
        shown = repr(label) if isinstance(label, float | bytes) else type(label).__name__
        raise StreammimlError(
            f"{where} a label that is {shown}; labels are names or whole numbers, and {_AS_ARRAY}"
        )
    return label
