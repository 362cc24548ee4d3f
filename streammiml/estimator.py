"""``MIMLfast``: scikit-learn conventions for bags that are in memory already."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.bag_weights import COLUMN
from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.from_arrays import (
    ONE_EACH,
    LabelNumbers,
    block_of,
    classes_of,
    feature_names_of,
    in_form,
    in_memory,
    is_matrix,
    is_one_array,
    labels_of,
)
from streammiml.bags.memory import MemoryBags
from streammiml.config import Calibrate, Rule, TrainConfig, parse_size
from streammiml.errors import StreammimlError
from streammiml.kernel.score import Scores
from streammiml.learn.defaults import resolved
from streammiml.learn.holdout import Holdout
from streammiml.learn.progress import TrainProgress
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
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import check_is_fitted
except ModuleNotFoundError as error:
    raise StreammimlError(
        f"MIMLfast needs scikit-learn ({error}): pip install 'streammiml[sklearn]'"
    ) from None

I64 = NDArray[np.int64]

_DEFAULTS = TrainConfig()


def _has_probabilities(estimator: MIMLfast) -> bool:
    """Whether the fitted model is calibrated; before ``fit``, whether it will be."""
    if hasattr(estimator, "model_"):
        return estimator.model_.calibration is not None
    return estimator.calibrate not in (None, "none")


class MIMLfast(BaseEstimator):  # type: ignore[misc]
    """Multi-instance multi-label learning of bags in memory, with scikit-learn conventions.

    Bags are a list of arrays (rows, features) or of SciPy sparse matrices, all with the same
    features; an object array of them; an array (bags, rows, features); or, where each bag is one
    row, a matrix (bags, features), dense or sparse. Rows are taken as float32.

    Labels are an indicator matrix (bags, labels), dense or sparse; a list with the labels of each
    bag, names or whole numbers (a bag may have none); or one name or number per bag.

    ``decision_function`` returns the scores, which come from a ranking loss and are not
    probabilities. ``predict_proba`` exists with ``calibrate``, which fits probabilities to scores
    of bags that were not trained on.

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
    init
        First weights: ``random``, which ``auto`` takes; or from the bags, the same for all
        sub-concepts of a label (``means``) or by clusters of rows (``clusters``).
    loss
        ``warp`` favours the top of the ranking; ``pairs`` gives all pairs of labels one weight.
    restarts
        Number of trainings with different seeds, whose row scores the model averages; 1 by default.
    calibrate
        ``auto``, ``platt`` or ``isotonic``: ``fit`` also fits probabilities, on the bags held out,
        or by training again on three folds; ``predict_proba`` returns them.

    Attributes
    ----------
    classes_
        (L,) Labels, in the order of the columns of all results; if ``y`` was a matrix, the names of
        its columns (of a data frame), or their numbers.
    n_features_in_
        Features of a row.
    feature_names_in_
        (``n_features_in_``,) Names of the features; only if bags were data frames with named
        columns. Bags with other names are refused.
    n_iter_
        Number of passes over the training bags, the last maybe not to its end, in the first
        restart; after ``partial_fit`` the number of its calls.
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
        init: str = _DEFAULTS.init,
        loss: str = _DEFAULTS.loss,
        restarts: int | None = _DEFAULTS.restarts,
        calibrate: Calibrate | None = _DEFAULTS.calibrate,
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
        self.init = init
        self.loss = loss
        self.restarts = restarts
        self.calibrate = calibrate

    def fit(self, bags: Any, y: Any, sample_weight: Any = None) -> MIMLfast:
        """Train a new model on these bags and labels; for early stopping see ``validation``.

        ``sample_weight`` (n,) has a weight for each bag, a number from 0, by which the steps on the
        bag are scaled: 1 changes nothing, and steps on a bag of weight 0 change nothing. Weights
        are used as they are, so that a mean of about 1 suits the step size. A bag of weight 2 is
        learned from twice as much, not twice: it is not the same as two equal bags.

        All else counts every bag alike, those of weight 0 too: scaling, lift, the first weights
        (unless ``init`` is ``random``), ``r`` and ``min_labels`` of the label rule, the losses of
        held-out bags, and calibration. Leave a bag out of ``bags`` if it must have no effect.

        Examples
        --------
        >>> import numpy as np, streammiml as sm
        >>> bags = np.random.default_rng(0).normal(size=(100, 3, 5))  # 100 bags of 3 rows
        >>> Y = (bags.max(axis=1) > 1)[:, :2]  # an indicator matrix of two labels
        >>> sm.MIMLfast(shared_dim=8, epochs=2).fit(bags, Y).predict(bags).shape
        (100, 2)
        """
        config = self._config()
        names, block = feature_names_of(bags), block_of(bags)
        labels = labels_of(y, None)
        _check_one_bag(bags, len(labels.offsets) - 1)
        store = in_memory(block, labels, sample_weight)
        if sample_weight is not None:
            config = replace(config, bag_weights=COLUMN)
        complete_config = resolved(config, store.n_bags)
        if complete_config.validation and not _can_be_ranked(complete_config, store):
            config = replace(complete_config, validation=0.0)
        epochs = [0]

        def note(progress: TrainProgress) -> None:
            if progress.restart == 0:
                epochs[0] = min(progress.epoch + 1, progress.epochs)

        self.model_ = train(store, config, watch=note)
        self._seen, self._passes = _Seen().with_bags(store), 1
        self._set_fitted(store, labels, names)
        self.n_iter_ = epochs[0]
        return self

    def partial_fit(
        self,
        bags: Any,
        y: Any,
        classes: Sequence[Any] | None = None,
        sample_weight: Any = None,
    ) -> MIMLfast:
        """Train for one pass over these bags, starting from the fitted model if there is one.

        Scaling and lift are those of the first call, so its bags should be a representative sample.
        Step size and mean of the weights start again with every call, so a few large batches do
        better than many small ones. No bags are held out, so the model is not calibrated.

        Parameters
        ----------
        bags
            As for ``fit``, with the features of the first call.
        y
            As for ``fit``; the labels are those of ``classes_``, in this order if it is a matrix.
        classes
            All labels that can occur; the first call needs them unless ``y`` is a matrix. A later
            call may add labels: give all labels of before and the new ones, which are appended to
            ``classes_`` in sorted order. The model keeps what it has learned of the others.
        sample_weight
            As for ``fit``.

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
        >>> names[0] = ["odd"]  # a new label
        >>> model.partial_fit(bags, names, classes=["high", "low", "odd"]).classes_.tolist()
        ['high', 'low', 'odd']
        """
        previous: Model | None = getattr(self, "model_", None)
        names, block = feature_names_of(bags), block_of(bags)
        if previous is not None:
            self._check_features(block, names)
        labels = labels_of(y, self._classes_for(y, classes))
        _check_one_bag(bags, len(labels.offsets) - 1)
        store = in_memory(block, labels, sample_weight)
        passes = 0 if previous is None else self._passes
        seen = (_Seen() if previous is None else self._seen).with_bags(store)
        # Each pass has another seed: draws are a function of the seed and the step number, and step
        # numbers start again at 0.
        config = self._config()
        config = replace(
            config, epochs=1, validation=0.0, seed=config.seed + passes, calibrate=None
        )
        if sample_weight is not None:
            config = replace(config, bag_weights=COLUMN)
        if previous is not None:
            config = replace(config, init="auto")
        model = train(store, config, start=previous)
        self.model_ = replace(model, rule=seen.rule(config))
        self._seen, self._passes = seen, passes + 1
        if previous is not None and hasattr(self, "feature_names_in_"):
            names = self.feature_names_in_.tolist()
        self._set_fitted(store, labels, names)
        self.n_iter_ = self._passes
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
        return in_form(self._form, self.classes_, chosen)

    def decision_function(self, bags: Any) -> NDArray[np.float64]:
        """(n, L) Scores minus the dummy label's; the rule ``dummy`` predicts labels above 0."""
        # The difference is exact in float64, so different scores stay different.
        values = np.concatenate([scores.value for scores in self._scored(bags)], dtype=np.float64)
        margins: NDArray[np.float64] = values[:, :-1] - values[:, -1:]
        return margins

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, bags: Any) -> NDArray[np.float64]:
        """(n, L) Probability that a bag carries each label, in the order of ``classes_``.

        Labels are independent of each other: a bag may carry several or none. If each bag had one
        label in ``fit``, the probabilities of a bag are scaled to add up to 1.

        Examples
        --------
        >>> import numpy as np, streammiml as sm
        >>> bags = np.random.default_rng(0).normal(size=(100, 3, 5))
        >>> Y = (bags.max(axis=1) > 1)[:, :2]
        >>> sm.MIMLfast(shared_dim=8, epochs=2, calibrate="platt").fit(bags, Y).predict_proba(
        ...     bags
        ... ).shape
        (100, 2)
        """
        scored = self._scored(bags)
        calibration = self.model_.calibration
        assert calibration is not None, "available_if has asked"
        parts = [
            calibration.of_scores(scores.value[:, :-1], scores.value[:, -1]) for scores in scored
        ]
        probabilities: NDArray[np.float64] = np.concatenate(parts, dtype=np.float64)
        if self._form == ONE_EACH:
            probabilities /= np.maximum(probabilities.sum(axis=1, keepdims=True), 1e-30)
        return probabilities

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
        store = in_memory(block, labels_of(y, self.classes_))
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
        return TrainConfig(**plain, preset="plain")

    def _classes_for(self, y: Any, classes: Sequence[Any] | None) -> NDArray[Any] | None:
        """Labels of before and new ones of ``classes``; None if ``y`` is a matrix that says all."""
        named = None if classes is None else classes_of(classes)
        if not hasattr(self, "model_"):
            if named is None and not is_matrix(y):
                raise StreammimlError(
                    "the first partial_fit needs classes=, a list of all labels that will occur, "
                    "or y as an indicator matrix"
                )
            return named
        if named is None:
            return self.classes_
        known, given = self.classes_.tolist(), named.tolist()
        missing = [label for label in known if label not in given]
        if missing:
            raise StreammimlError(
                f"classes lacks {missing[0]!r}, one of the {len(known)} labels of the calls "
                "before; give all labels of before and the new ones, leave classes out, or call fit"
            )
        added = [label for label in given if label not in known]
        return np.concatenate([self.classes_, np.array(added, named.dtype)])

    def _set_fitted(self, store: MemoryBags, labels: LabelNumbers, names: list[str] | None) -> None:
        self.classes_, self._form = labels.classes, labels.form
        self.n_features_in_ = store.n_features
        self._longest = int(store.bag_sizes(0, store.n_bags).max())
        if names is not None:
            self.feature_names_in_ = np.array(names, object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _check_features(self, block: BagBlock, names: list[str] | None) -> None:
        known = getattr(self, "feature_names_in_", None)
        if known is not None and names is not None and names != known.tolist():
            odd = next((a, b) for a, b in zip_longest(names, known.tolist()) if a != b)
            raise StreammimlError(
                f"bags have a column {odd[0]!r} where the bags that {type(self).__name__} was "
                f"fitted to have {odd[1]!r}; give the same columns in the same order: "
                "bag[model.feature_names_in_]"
            )
        if block.n_features != self.n_features_in_:
            raise StreammimlError(
                f"bag 0 of X has {block.n_features} features, but {type(self).__name__} is "
                f"expecting {self.n_features_in_} features as input"
            )

    def _scorable(self, bags: Any) -> BagBlock:
        """Convert bags to a block, and refuse bags that the model cannot score."""
        check_is_fitted(self)
        names, block = feature_names_of(bags), block_of(bags)
        self._check_features(block, names)
        if is_one_array(bags) and len(block) > 1 and getattr(self, "_longest", 1) > 1:
            warnings.warn(
                f"one array of {len(block)} rows is taken as {len(block)} bags of one row; if it "
                "is one bag, write [X]; if it is not, X[:, None] says so",
                stacklevel=4,
            )
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


def _check_one_bag(bags: Any, n_labelled: int) -> None:
    """Refuse an array of several rows with the labels of one bag."""
    if n_labelled == 1 and is_one_array(bags) and np.shape(bags)[0] > 1:
        n_rows = np.shape(bags)[0]
        raise StreammimlError(
            f"one array of {n_rows} rows is taken as {n_rows} bags of one row, and y has the "
            "labels of one bag; if the array is one bag, write [X]"
        )


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


def _can_be_ranked(config: TrainConfig, store: MemoryBags) -> bool:
    """Whether the ranking loss of the bags that would be held out can tell models apart."""
    try:
        open_validation(config, store, Holdout.of(config.validation or 0.0, store.n_bags))
    except StreammimlError:
        return False
    return True
