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
from streammiml.learn.defaults import resolved
from streammiml.learn.holdout import Holdout
from streammiml.learn.train import train
from streammiml.learn.validation import open_validation
from streammiml.measure.ranking import average_precision
from streammiml.measure.rules import predicted
from streammiml.measure.scoring import BLOCK_BYTES, scored_block, scored_blocks
from streammiml.measure.tasks import all_bags
from streammiml.model import LabelRule, Model
from streammiml.scorer import Scorer

try:
    from sklearn.base import BaseEstimator
    from sklearn.utils.validation import check_is_fitted
except ModuleNotFoundError as error:
    raise StreammimlError(
        f"MIMLfast needs scikit-learn ({error}): pip install 'streammiml[sklearn]'"
    ) from None

from scipy import sparse  # scikit-learn depends on SciPy, so it is installed here.

I64 = NDArray[np.int64]

# Form in which labels were given; ``predict`` returns the same form.
MATRIX, SPARSE_MATRIX, LISTS, ONE_EACH = "matrix", "sparse matrix", "lists", "one each"
_DEFAULTS = TrainConfig()


class MIMLfast(BaseEstimator):  # type: ignore[misc]
    """Multi-instance multi-label learning of bags in memory, with scikit-learn conventions.

    Bags are a list of arrays (rows, features) or of SciPy sparse matrices, all with the same
    features; an object array of them; an array (bags, rows, features); or, where each bag is one
    row, a matrix (bags, features), dense or sparse. Rows are taken as float32.

    Labels are an indicator matrix (bags, labels), dense or sparse; a list with the labels of each
    bag, names or whole numbers (a bag may have none); or one name or number per bag.

    There is no ``predict_proba``: scores come from a ranking loss and are not probabilities.
    ``decision_function`` returns the scores; if you need probabilities, calibrate the scores on
    bags that were not trained on.

    Parameters
    ----------
    shared_dim
        Dimensions of the space that all labels share.
    subconcepts
        Linear models of each label; models that are not needed stay empty.
    max_norm
        Largest L2 norm of a label's weights and of a column of the shared space.
    step_size
        Size of the first step.
    decay
        How fast steps become smaller.
    average
        Return the mean of the recent weights instead of the last weights.
    shared_space
        Learn the shared space; without it each label is a linear model of the row.
    scale
        ``auto``, ``none``, ``unit``, ``standard``, ``standard+unit`` or ``maxabs``, with ``sqrt:``
        or ``log1p:`` before it for counts and histograms.
    lift
        Features added to each row while training: ``fourier:N[:BANDWIDTH]``, and ``context``,
        ``context:all`` or ``context:mean``; or both, joined by a comma. For sparse bags only
        ``context:mean`` is possible.
    epochs
        Largest number of passes over the training bags; for the default see ``validation``.
    max_steps
        Largest number of steps.
    patience
        Training stops after this many looks at the held-out bags without a lower ranking loss.
    validation
        Share of bags held out for early stopping. The default is a tenth for 5000 bags or more.
        With fewer bags none is held out; unless ``epochs`` or ``max_steps`` is given, cross
        validation chooses the number of epochs, ``model_.settings["epochs"]``. If the ranking loss
        of the held-out bags could not tell models apart, no bag is held out, and
        ``model_.settings["validation"]`` is 0.
    memory
        Upper limit for the memory that training takes beside the bags, such as ``2GiB``; training
        that would take more is refused before it begins.
    threads
        Kernel threads; with more than one, results vary from run to run.
    seed
        Seed of every random choice: order of bags, draws, start weights, splits.
    rule
        Which labels are predicted: labels that score above the dummy label (``dummy``), labels that
        score above the dummy label's score minus 1 (``margin``), or the r labels with the highest
        scores (``top-r``), where r is the mean number of labels of a training bag.
    min_labels
        Least number of labels predicted; by default 1 if every training bag has a label, else 0.

    Attributes
    ----------
    classes_
        (L,) Labels, in the order of the columns of all results; column numbers if ``y`` was a
        matrix.
    n_features_in_
        Features of a row.
    model_
        The trained :class:`Model`. To keep it, prefer ``model_.save(path)`` to a pickle of the
        estimator: the file is safetensors with a checksum, and the command line reads it too.

    Examples
    --------
    A bag is a shore if one of its rows has a high first value, a wood if a high second value:

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
    >>> model.key_instances(new)[1]  # rows that give the scores of shore and wood
    array([1, 1])
    """

    def __init__(
        self,
        *,
        shared_dim: int = _DEFAULTS.shared_dim,
        subconcepts: int = _DEFAULTS.subconcepts,
        max_norm: float = _DEFAULTS.max_norm,
        step_size: float = _DEFAULTS.step_size,
        decay: float = _DEFAULTS.decay,
        average: bool = _DEFAULTS.average,
        shared_space: bool = _DEFAULTS.shared_space,
        scale: str = _DEFAULTS.scale,
        lift: str = _DEFAULTS.lift,
        epochs: int | None = _DEFAULTS.epochs,
        max_steps: int | None = _DEFAULTS.max_steps,
        patience: int = _DEFAULTS.patience,
        validation: float | None = _DEFAULTS.validation,
        memory: str = _DEFAULTS.memory,
        threads: int = _DEFAULTS.threads,
        seed: int = _DEFAULTS.seed,
        rule: Rule = _DEFAULTS.rule,
        min_labels: int | None = _DEFAULTS.min_labels,
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
        """Train a new model on these bags and labels; for early stopping see ``validation``.

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
        store = _in_memory(block, labels)
        complete_config = resolved(config, store.n_bags)
        if complete_config.validation and not _can_be_ranked(complete_config, store):
            config = replace(complete_config, validation=0.0)
        self.model_ = train(store, config)
        self._seen, self._passes = _Seen().with_bags(store), 1
        self._set_fitted(store, labels)
        return self

    def partial_fit(self, bags: Any, y: Any, classes: Sequence[Any] | None = None) -> MIMLfast:
        """Train for one pass over these bags, starting from the fitted model if there is one.

        Scaling and lift are those of the first call, so its bags should be a representative sample.
        Step size and mean of the weights start again with every call, so a few large batches do
        better than many small ones. No bags are held out.

        Parameters
        ----------
        bags
            As for ``fit``, with the features of the first call.
        y
            As for ``fit``; the labels are those of the first call.
        classes
            All labels that will ever occur; the first call needs them unless ``y`` is a matrix.

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
        previous: Model | None = getattr(self, "model_", None)
        block = _block_of(bags)
        if previous is not None:
            self._check_features(block)
        labels = _labels_of(y, self._classes_for(y, classes))
        store = _in_memory(block, labels)
        passes = 0 if previous is None else self._passes
        seen = (_Seen() if previous is None else self._seen).with_bags(store)
        # Each pass has another seed: draws are a function of the seed and the step number, and step
        # numbers start again at 0.
        config = self._config()
        config = replace(config, epochs=1, validation=0.0, seed=config.seed + passes)
        model = train(store, config, start=previous)
        self.model_ = replace(model, rule=seen.rule(config))
        self._seen, self._passes = seen, passes + 1
        self._set_fitted(store, labels)
        return self

    def predict(self, bags: Any) -> Any:
        """Labels of each bag, in the form of the labels that were passed to ``fit``.

        The result is an indicator matrix (n, L) of 0 and 1, dense or sparse; or a list of tuples of
        names or numbers, in the order of ``classes_``; or, if each bag had one label, an array with
        the label of the highest score.
        """
        scored = self._scored(bags)
        if self._form == ONE_EACH:
            best = np.concatenate([scores.value[:, :-1].argmax(axis=1) for scores in scored])
            return self.classes_[best]
        rule = self.model_.rule
        chosen = np.concatenate(
            [predicted(rule, scores.value[:, :-1], scores.value[:, -1]) for scores in scored]
        )
        if self._form == MATRIX:
            return chosen.astype(np.int64)
        if self._form == SPARSE_MATRIX:
            return sparse.csr_matrix(chosen, dtype=np.int64)
        names = self.classes_.tolist()
        return [tuple(names[label] for label in np.flatnonzero(row)) for row in chosen]

    def decision_function(self, bags: Any) -> NDArray[np.float64]:
        """(n, L) Scores minus the dummy label's; the rule ``dummy`` predicts labels above 0."""
        # The difference is exact in float64, so different scores stay different.
        values = np.concatenate([scores.value for scores in self._scored(bags)], dtype=np.float64)
        margins: NDArray[np.float64] = values[:, :-1] - values[:, -1:]
        return margins

    def key_instances(self, bags: Any) -> I64:
        """(n, L) Key instances: the row of each bag that gives the score of each label."""
        rows = [scores.row[:, :-1] for scores in self._scored(bags)]
        return np.concatenate(rows, dtype=np.int64)

    def key_subconcepts(self, bags: Any) -> I64:
        """(n, L) The sub-concept of each label that gives the score of each bag."""
        subs = [scores.subconcept[:, :-1] for scores in self._scored(bags)]
        return np.concatenate(subs, dtype=np.int64)

    def score(self, bags: Any, y: Any) -> float:
        """Label ranking average precision, 0 to 1; bags with no label or all labels count as 1.

        The value equals ``sklearn.metrics.label_ranking_average_precision_score`` of
        ``decision_function``. For another metric, pass ``scoring`` to ``GridSearchCV`` and others.
        """
        block = self._scorable(bags)
        store = _in_memory(block, _labels_of(y, self.classes_))
        rule, metric = self.model_.rule, average_precision
        parts = (metric.block(scored_block(rule, *part)) for part in self._scored_blocks(store))
        return float(metric.finish(reduce(metric.combine, parts)).value)

    def __sklearn_tags__(self) -> Any:
        # The tags do not say classifier: scikit-learn would then refuse lists of labels.
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.one_d_labels = tags.target_tags.two_d_labels = True
        tags.input_tags.sparse = tags.input_tags.three_d_array = True
        tags.non_deterministic = self.threads != 1
        return tags

    def _config(self) -> TrainConfig:
        """Parameters as checked settings; NumPy numbers, which grids often hold, are converted."""
        given = self.get_params(deep=False)
        plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in given.items()}
        return TrainConfig(**plain)

    def _classes_for(self, y: Any, classes: Sequence[Any] | None) -> NDArray[Any] | None:
        """Labels of the first call, or ``classes`` in the first call; None if ``y`` is a matrix."""
        named = None if classes is None else _classes_of(classes)
        if not hasattr(self, "model_"):
            if named is None and not _is_matrix(y):
                raise StreammimlError(
                    "the first partial_fit needs classes=, a list of all labels that will occur, "
                    "or y as an indicator matrix"
                )
            return named
        if named is not None and named.tolist() != self.classes_.tolist():
            raise StreammimlError(
                f"classes has {len(named)} labels, which are not the {len(self.classes_)} labels "
                "of the first call; leave classes out, or call fit"
            )
        return self.classes_

    def _set_fitted(self, store: MemoryBags, labels: _LabelNumbers) -> None:
        self.classes_, self._form = labels.classes, labels.form
        self.n_features_in_ = store.n_features

    def _check_features(self, block: BagBlock) -> None:
        if block.n_features != self.n_features_in_:
            raise StreammimlError(
                f"bag 0 of X has {block.n_features} features, but {type(self).__name__} is "
                f"expecting {self.n_features_in_} features as input"
            )

    def _scorable(self, bags: Any) -> BagBlock:
        """Convert bags to a block, and refuse bags that the model cannot score."""
        check_is_fitted(self)
        block = _block_of(bags)
        self._check_features(block)
        if isinstance(block.rows, SparseRows) and self.model_.needs_dense_rows:
            raise StreammimlError(
                "the model was fitted on dense bags and these are sparse; "
                "give [bag.toarray() for bag in bags]"
            )
        return block

    def _scored_blocks(self, store: MemoryBags) -> Iterator[tuple[BagBlock, Scores]]:
        """Yield blocks of bags with their scores, a few bags at a time."""
        bag_range, size = all_bags(store, remote=False), parse_size(BLOCK_BYTES)
        for _, block, scores in scored_blocks(bag_range, Scorer(self.model_), size):
            yield block, scores

    def _scored(self, bags: Any) -> Iterator[Scores]:
        store = MemoryBags(self._scorable(bags), n_labels=len(self.classes_))
        return (scores for _, scores in self._scored_blocks(store))


class _Seen(NamedTuple):
    """Counts over all bags trained on; the rule is computed from them."""

    n_bags: int = 0
    n_pairs: int = 0
    n_unlabelled: int = 0

    def with_bags(self, store: MemoryBags) -> _Seen:
        """Return the counts with these bags added."""
        offsets, _ = store.labels(0, store.n_bags)
        return _Seen(
            self.n_bags + store.n_bags,
            self.n_pairs + store.n_label_entries,
            self.n_unlabelled + int((np.diff(offsets) == 0).sum()),
        )

    def rule(self, config: TrainConfig) -> LabelRule:
        return LabelRule.fitted(config.rule, config.min_labels, **self._asdict())


class _LabelNumbers(NamedTuple):
    """Labels as numbers; ``indices[offsets[i] : offsets[i + 1]]`` are those of bag i, unsorted."""

    offsets: I64
    indices: NDArray[np.int32]
    classes: NDArray[Any]
    form: str


def _can_be_ranked(config: TrainConfig, store: MemoryBags) -> bool:
    """Whether the ranking loss of the bags that would be held out can tell models apart."""
    try:
        open_validation(config, store, Holdout.of(config.validation or 0.0, store.n_bags))
    except StreammimlError:
        return False
    return True


def _in_memory(block: BagBlock, labels: _LabelNumbers) -> MemoryBags:
    """Join bags and labels into a store in memory."""
    _check_counts(len(block), labels)
    numbered = labels.form in (MATRIX, SPARSE_MATRIX) and labels.classes.dtype.kind == "i"
    names = None if numbered else [str(name) for name in labels.classes.tolist()]
    block = replace(block, label_offsets=labels.offsets, label_indices=labels.indices)
    return MemoryBags(block, n_labels=len(labels.classes), label_names=names)


def _check_counts(n_bags: int, labels: _LabelNumbers) -> None:
    if n_bags != len(labels.offsets) - 1:
        raise StreammimlError(f"there are {n_bags} bags, and labels for {len(labels.offsets) - 1}")


def _block_of(bags: Any) -> BagBlock:
    """Convert bags of any accepted form to a block without labels."""
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
    """Concatenate bags; all must have the features of the first, and be sparse if it is."""
    arrays = [bag if sparse.issparse(bag) else _array_of(bag, i) for i, bag in enumerate(bags)]
    for number, bag in enumerate(arrays):
        if bag.ndim != 2:
            raise StreammimlError(
                f"bag {number} has shape {bag.shape}, expected (rows, features); for bags of one "
                "row each give a 2-d array. Reshape your data"
            )
        if sparse.issparse(bag) != sparse.issparse(arrays[0]):
            raise StreammimlError(
                f"bag {number} is {'sparse' if sparse.issparse(bag) else 'dense'} and bag 0 is "
                "not; give bags of one kind"
            )
        if bag.shape[1] != arrays[0].shape[1]:
            raise StreammimlError(
                f"bag {number} has {bag.shape[1]} features and bag 0 has {arrays[0].shape[1]}; "
                "all bags need the same features"
            )
    sizes = np.array([bag.shape[0] for bag in arrays], np.int64)
    if not arrays:
        return _unlabelled(np.empty((0, 1), np.float32), sizes)
    if sparse.issparse(arrays[0]):
        return _unlabelled(sparse.vstack(arrays, format="csr"), sizes)
    return _unlabelled(np.concatenate(arrays), sizes)


def _array_of(bag: Any, number: int) -> NDArray[Any]:
    try:
        array = np.asarray(bag)
    except ValueError as error:
        raise StreammimlError(f"bag {number} cannot be made an array: {error}") from None
    return _numbers(array, f"bag {number} holds")


def _unlabelled(rows: Any, sizes: I64) -> BagBlock:
    """Make a block of bags of these sizes; refuse bags without rows and rows without features."""
    if not len(sizes):
        raise StreammimlError("there are no bags")
    if not sizes.all():
        raise StreammimlError(f"bag {int(sizes.argmin())} has no rows; leave it out")
    if not rows.shape[1]:
        raise StreammimlError(
            f"bag 0 has 0 feature(s) (shape={rows.shape}) while a minimum of 1 is required."
        )
    if sparse.issparse(rows):
        # A copy, because sum_duplicates changes the matrix in place.
        rows = rows.tocsr(copy=True)
        rows.sum_duplicates()
        columns = rows.indices.astype(np.uint32)
        offsets = rows.indptr.astype(np.int64)
        block_rows: Any = SparseRows(
            offsets, columns, _numbers(rows.data, "bags hold"), rows.shape[1]
        )
    else:
        block_rows = _numbers(rows, "bags hold")
    label_offsets = np.zeros(len(sizes) + 1, np.int64)
    return BagBlock(from_sizes(sizes), block_rows, label_offsets, np.empty(0, np.int32))


def _numbers(values: NDArray[Any], subject: str) -> NDArray[Any]:
    """Keep floats and the integer types of stores; convert other numbers to float32."""
    if values.dtype == object:
        try:
            values = values.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise StreammimlError(f"{subject} values that are not numbers: {error}") from None
    if values.dtype.kind == "c":
        raise StreammimlError(f"{subject} {values.dtype} values. Complex data not supported")
    if values.dtype.kind not in "fiub":
        raise StreammimlError(f"{subject} {values.dtype} values, expected numbers")
    is_kept = values.dtype.name in ROW_DTYPES or values.dtype.kind == "f"
    return values if is_kept else values.astype(np.float32)


def _is_matrix(y: Any) -> bool:
    """Whether labels are an indicator matrix; lists of lists are names or numbers of labels."""
    return sparse.issparse(y) or (not isinstance(y, list | tuple) and np.ndim(y) == 2)


def _labels_of(y: Any, classes: NDArray[Any] | None) -> _LabelNumbers:
    """Convert labels of any accepted form to numbers; ``classes`` defaults to those that occur."""
    if y is None:
        raise StreammimlError("MIMLfast requires y to be passed, but the target y is None")
    if _is_matrix(y):
        return _from_matrix(y, classes)
    entries = list(y)
    several = [isinstance(entry, list | tuple | set | frozenset | np.ndarray) for entry in entries]
    if any(several) and not all(several):
        odd = several.index(not several[0])
        raise StreammimlError(
            f"the labels of bag {odd} are {entries[odd]!r} and those of bag 0 {entries[0]!r}; give "
            "a list for every bag, or one label for every bag"
        )
    lists = entries if any(several) else [[entry] for entry in entries]
    named = [[_plain_label(label, bag) for label in labels] for bag, labels in enumerate(lists)]
    for bag, labels in enumerate(named):
        if len(set(labels)) != len(labels):
            raise StreammimlError(f"bag {bag} has a label twice: {labels!r}; {_AS_ARRAY}")
    if classes is None:
        classes = _classes_of([label for labels in named for label in labels])
        if len(classes) > 1 and all(len(labels) == len(classes) for labels in named):
            raise StreammimlError(
                f"every bag has all {len(classes)} labels, so none can be told apart; {_AS_ARRAY}"
            )
    return _from_lists(named, classes, LISTS if any(several) else ONE_EACH)


_AS_ARRAY = "an indicator matrix must be an array, as np.array(y) makes it"


def _from_matrix(y: Any, classes: NDArray[Any] | None) -> _LabelNumbers:
    """Convert an indicator matrix to numbers of labels."""
    form = SPARSE_MATRIX if sparse.issparse(y) else MATRIX
    values: Any = y.tocsr() if form == SPARSE_MATRIX else np.asarray(y)
    if values.dtype.kind not in "biuf":
        raise StreammimlError(
            f"y is a matrix of {values.dtype}, expected 0 and 1; give names as lists, y.tolist()"
        )
    entries = values.data if form == SPARSE_MATRIX else values
    wrong = entries[(entries != 0) & (entries != 1)]
    if wrong.size:
        raise StreammimlError(
            f"y holds {wrong[0]}, and an indicator matrix holds 0 and 1; give numbers "
            "of labels as a list for each bag"
        )
    if classes is not None and values.shape[1] != len(classes):
        raise StreammimlError(f"y has {values.shape[1]} columns for {len(classes)} labels")
    bags, labels = values.nonzero()
    return _LabelNumbers(
        from_sizes(np.bincount(bags, minlength=values.shape[0])),
        labels.astype(np.int32),
        np.arange(values.shape[1]) if classes is None else classes,
        form,
    )


def _from_lists(named: list[list[Any]], classes: NDArray[Any], form: str) -> _LabelNumbers:
    number_of_label = {label: number for number, label in enumerate(classes.tolist())}
    for bag, labels in enumerate(named):
        for label in labels:
            if label not in number_of_label:
                raise StreammimlError(
                    f"bag {bag} has the label {label!r}, which is none of the {len(classes)} "
                    "known labels; to include labels that no training bag has, train with an "
                    "indicator matrix"
                )
    indices = [number_of_label[label] for labels in named for label in labels]
    return _LabelNumbers(
        from_sizes([len(labels) for labels in named]), np.array(indices, np.int32), classes, form
    )


def _classes_of(labels: Iterable[Any]) -> NDArray[Any]:
    """Sort the distinct labels."""
    distinct = {_plain_label(label) for label in labels}
    names = sorted(label for label in distinct if isinstance(label, str))
    numbers = sorted(label for label in distinct if not isinstance(label, str))
    if names and numbers:
        raise StreammimlError(
            f"labels are both names, such as {names[0]!r}, and numbers, such as {numbers[0]}; "
            "give one kind"
        )
    return np.array(names) if names else np.array(numbers, np.int64)


def _plain_label(label: Any, bag: int | None = None) -> str | int:
    """Convert a label to a Python string or integer."""
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
