"""Peers that a user could take instead of streammiml, on the same splits.

``python paper_peers.py METHOD IN.npz OUT.npz SMOKE``, in the interpreter that has streammiml with
its extra ``peers``; three of the methods are those of ``streammiml.rivals``. IN has ``rows``
(sparse rows: ``values``, ``columns``, ``row_offsets`` and ``n_features``),
``bag_offsets``, ``truth``, the bag numbers ``learn`` and ``test``, and ``fold`` of each training
bag. OUT gets ``scores`` and ``predicted`` of the test bags, ``key_rows`` if the method has them,
and ``search_result``, JSON of the chosen setting and the number of settings.

Cross validation by ranking loss on the training bags chooses one of at most 32 settings: all are
tried on the first fold, the better third also on the other folds. A label is predicted if its score
is above a cutoff: the peer's own, 0.5 for probabilities, otherwise the threshold with the lowest
Hamming loss out of fold. If every training bag has a label, the label with the highest score is
always predicted, as in ours.
"""

import inspect
import json
import math
import sys
import warnings
from importlib import import_module
from itertools import product
from pathlib import Path

import numpy as np

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.memory import MemoryBags
from streammiml.bags.offsets import from_sizes, gather
from streammiml.rivals import registry
from streammiml.rivals.pooling import VectorScale, pooled
from streammiml.rivals.registry import METHODS


class BagsOfPeer:
    """Rows of all bags, dense or CSR; ``pooled`` gives one vector a bag."""

    def __init__(self, rows, offsets, truth):
        self.rows, self.offsets, self.truth = rows, offsets, truth

    def take(self, chosen):
        offsets, numbers = gather(self.offsets, chosen)
        return BagsOfPeer(self.rows[numbers], offsets, self.truth[chosen])

    def store(self):
        rows = self.rows.astype(np.float32)
        if not isinstance(rows, np.ndarray):
            columns = rows.indices.astype(np.uint32)
            rows = SparseRows(rows.indptr.astype(np.int64), columns, rows.data, rows.shape[1])
        bags, labels = np.nonzero(self.truth)
        label_offsets = from_sizes(np.bincount(bags, minlength=len(self.truth)))
        block = BagBlock(self.offsets, rows, label_offsets, labels.astype(np.int32))
        return MemoryBags(block, n_labels=self.truth.shape[1])

    def pooled(self, *kinds):
        return pooled(self.store(), kinds)


def ranking_loss(truth, scores):
    """Mean share of (relevant, irrelevant) pairs in the wrong order; ties are wrong."""
    losses = []
    for own, values in zip(truth, scores, strict=True):
        if own.any() and not own.all():
            losses.append((values[own][:, None] <= values[~own]).mean())
    return float(np.mean(losses)) if losses else 0.0


def scaled(kind, learn, other):
    """Scale both by statistics of ``learn``; ``kind`` is standard, unit or sqrt+unit."""
    scale = VectorScale(kind, learn)
    return scale.apply(learn), scale.apply(other)


class Peer:
    """One method. ``scores`` may set ``key_rows`` and ``cutoff`` for the bags that it scored."""

    probabilities = True
    key_rows = None
    cutoff = None

    def settings(self):
        """Settings to choose from."""
        raise NotImplementedError

    def scores(self, learn, other, setting, final):
        """Train on ``learn``, score ``other``; ``final`` is true once the setting is chosen."""
        raise NotImplementedError


class Rivals(Peer):
    """A method of ``streammiml.rivals``; forests have fewer trees while choosing than at last."""

    method = ""

    def settings(self):
        return list(METHODS[self.method].grid)

    def scores(self, learn, other, setting, final):
        if self.method == "forest":
            setting = {**setting, "trees": 500 if final else 100}
        model = METHODS[self.method].make(**setting, memory="64GiB").fit(learn.store())
        # Probabilities, because 0.5 is the cutoff here too.
        return model.decision_function(other.store()) + model.cutoff_


class Forest(Rivals):
    method = "forest"


class Logistic(Rivals):
    method = "logistic"


class Plt(Rivals):
    method = "plt"


class LightFm(Peer):
    """LightFM's WARP: bags are users with the scaled mean of their rows as features."""

    probabilities = False

    def settings(self):
        grid = product(("standard", "sqrt+unit"), (0.02, 0.05), (10, 40), (0.0, 1e-4))
        return [
            {"scale": s, "learning_rate": rate, "epochs": epochs, "alpha": alpha}
            for s, rate, epochs, alpha in grid
        ]

    def scores(self, learn, other, setting, _):
        lightfm, sparse = import_module("lightfm"), import_module("scipy.sparse")
        x, other_x = scaled(setting["scale"], learn.pooled("mean"), other.pooled("mean"))
        if setting["scale"] == "standard":
            x, other_x = (each / math.sqrt(x.shape[1]) for each in (x, other_x))
        x, other_x = (
            sparse.hstack([sparse.csr_matrix(each), np.ones((each.shape[0], 1))], "csr", np.float32)
            for each in (x, other_x)
        )
        n_labels = learn.truth.shape[1]
        model = lightfm.LightFM(
            no_components=30,
            loss="warp",
            learning_rate=setting["learning_rate"],
            user_alpha=setting["alpha"],
            max_sampled=n_labels,
            random_state=0,
        )
        seen = sparse.coo_matrix(learn.truth.astype(np.float32))
        model.fit(seen, user_features=x, epochs=setting["epochs"], num_threads=1)
        users = np.repeat(np.arange(other_x.shape[0]), n_labels)
        labels = np.tile(np.arange(n_labels), other_x.shape[0])
        found = model.predict(users, labels, user_features=other_x, num_threads=1)
        return found.reshape(-1, n_labels)


class TorchWarp(Peer):
    """Mini-batches of bags, WARP loss with a dummy label, max pooling, Adam, early stopping.

    A tenth of the bags to learn from is held out, and the weights of its lowest ranking loss are
    kept, as anyone would. While choosing, training may take 30 epochs, at last 150.
    """

    probabilities = False

    def settings(self):
        grid = product(("standard", "unit"), (0.001, 0.003, 0.01), (1, 5))
        return [{"scale": s, "rate": rate, "vectors": k} for s, rate, k in grid]

    def scores(self, learn, other, setting, final):
        torch = import_module("torch")
        torch.set_num_threads(1)
        torch.manual_seed(0)
        x, other_x = scaled(setting["scale"], learn.rows, other.rows)
        if setting["scale"] == "standard":
            x, other_x = (each / math.sqrt(x.shape[1]) for each in (x, other_x))
        rows, inside = self._padded(torch, x, learn.offsets)
        truth = torch.tensor(np.column_stack([learn.truth, np.zeros(len(learn.truth), bool)]))
        held = torch.zeros(len(rows), dtype=torch.bool)
        held[torch.randperm(len(rows))[: max(1, len(rows) // 10)]] = True
        weights = self._trained(torch, rows, inside, truth, held, setting, 150 if final else 30)
        with torch.no_grad():
            found, keys = self._scores(
                torch, *self._padded(torch, other_x, other.offsets), *weights
            )
        self.cutoff, self.key_rows = found[:, -1:].numpy(), keys[:, :-1].numpy()
        return found[:, :-1].numpy()

    def _padded(self, torch, x, offsets):
        sizes = np.diff(offsets)
        rows = np.zeros((len(sizes), sizes.max(), x.shape[1] + 1), np.float32)
        inside = np.arange(sizes.max())[None] < sizes[:, None]
        rows[inside] = np.column_stack([x, np.ones(len(x))])
        return torch.tensor(rows), torch.tensor(inside)

    def _scores(self, torch, rows, inside, shared, labels):
        dots = (rows @ shared) @ labels.reshape(-1, labels.shape[2]).T
        dots = dots.reshape(*dots.shape[:2], labels.shape[0], labels.shape[1]).amax(3)
        return dots.masked_fill(~inside[:, :, None], -torch.inf).max(1)

    def _trained(self, torch, rows, inside, truth, held, setting, epochs):
        d, n_all = rows.shape[2], truth.shape[1]
        shared = (torch.randn(d, 100) / d**0.5).requires_grad_()
        labels = (torch.randn(n_all, setting["vectors"], 100) / d**0.5).requires_grad_()
        harmonic = torch.cat([torch.zeros(1), (1 / torch.arange(1, n_all + 1)).cumsum(0)])
        adam = torch.optim.Adam([shared, labels], lr=setting["rate"])
        mine, best, kept, bad = torch.nonzero(~held)[:, 0], math.inf, (shared, labels), 0
        batch = 128 if len(mine) > 600 else 32
        for _ in range(epochs):
            for part in mine[torch.randperm(len(mine))].split(batch):
                adam.zero_grad()
                scores, _ = self._scores(torch, rows[part], inside[part], shared, labels)
                self._loss(torch, scores, truth[part], harmonic).backward()
                adam.step()
            with torch.no_grad():
                scores, _ = self._scores(torch, rows[held], inside[held], shared, labels)
            loss = ranking_loss(truth[held][:, :-1].numpy(), scores[:, :-1].numpy())
            bad = 0 if loss < best else bad + 1
            if loss < best:
                best, kept = loss, (shared.detach().clone(), labels.detach().clone())
            if bad >= 20:
                break
        return kept

    def _loss(self, torch, scores, truth, harmonic):
        choice = truth.float()
        choice[:, -1] = 1
        wanted = torch.multinomial(choice, 1)
        others = ~truth
        others.scatter_(1, wanted, False)
        n_others = others.sum(1)
        others[n_others == 0, -1] = True
        tries = torch.multinomial(others.float(), scores.shape[1], replacement=True)
        margin = 1 + scores.gather(1, tries) - scores.gather(1, wanted)
        within = torch.arange(scores.shape[1])[None] < n_others[:, None]
        violates = (margin > 0) & within
        first = violates.float().argmax(1)
        rank = (n_others // (first + 1)).clamp(min=1)
        losses = harmonic[rank] * margin.gather(1, first[:, None])[:, 0]
        return torch.where(violates.any(1), losses, torch.zeros(())).mean()


PEERS = {
    "forest": Forest,
    "logistic": Logistic,
    "plt": Plt,
    "lightfm": LightFm,
    "torch_warp": TorchWarp,
}


def source_of(name):
    """The source that decides what a peer does; measured lines are keyed by it.

    Any edit, even of a comment, makes the lines of the peer out of date.
    """
    if name not in METHODS:
        return inspect.getsource(PEERS[name])
    home = METHODS[name].home.partition(":")[0]
    files = (Path(registry.__file__).with_name(f"{module}.py") for module in (home, "pooling"))
    return "".join([repr(METHODS[name].grid), *(file.read_text("utf-8") for file in files)])


def choose(peer, bags, fold, settings):
    """The setting with the lowest mean ranking loss, and its out-of-fold scores of every bag."""
    trials = [{} for _ in settings]  # For each setting: fold → (loss, scores).

    def run_trial(number, held_out):
        other = np.flatnonzero(fold == held_out)
        learn = bags.take(np.flatnonzero(fold != held_out))
        scores = peer.scores(learn, bags.take(other), settings[number], False)
        trials[number][held_out] = (ranking_loss(bags.truth[other], scores), scores)

    def mean_loss(number):
        return np.mean([loss for loss, _ in trials[number].values()])

    for number in range(len(settings)):
        run_trial(number, 0)
    kept = sorted(range(len(settings)), key=mean_loss)[: max(2, math.ceil(len(settings) / 3))]
    for number in kept:
        for held_out in range(1, int(fold.max()) + 1):
            run_trial(number, held_out)
    best = min(kept, key=mean_loss)
    out = np.zeros(bags.truth.shape)
    for held_out, (_, scores) in trials[best].items():
        out[fold == held_out] = scores
    return settings[best], out


def threshold(truth, scores):
    """The threshold on scores with the lowest Hamming loss."""
    order = np.argsort(-scores, axis=None)
    right = np.cumsum(np.where(truth.ravel()[order], 1, -1))
    best = int(right.argmax())
    values = scores.ravel()[order]
    return (values[best] + values[min(best + 1, len(values) - 1)]) / 2


def bags_of(file):
    if "rows" in file:
        return BagsOfPeer(file["rows"].astype(np.float64), file["bag_offsets"], file["truth"])
    parts = file["values"].astype(np.float64), file["columns"], file["row_offsets"]
    shape = (len(parts[2]) - 1, int(file["n_features"]))
    rows = import_module("scipy.sparse").csr_matrix(parts, shape)
    return BagsOfPeer(rows, file["bag_offsets"], file["truth"])


def main():
    warnings.simplefilter("ignore")
    name, source, target, smoke = sys.argv[1:]
    file, peer = np.load(source), PEERS[name]()
    bags = bags_of(file)
    learn, test = bags.take(file["learn"]), bags.take(file["test"])
    settings = peer.settings()
    if not isinstance(bags.rows, np.ndarray):
        settings = [setting for setting in settings if setting.get("scale") != "standard"]
    settings = settings[: 2 if smoke == "1" else None]
    setting, out_of_fold = choose(peer, learn, file["fold"], settings)
    scores = peer.scores(learn, test, setting, smoke != "1")
    cutoff = peer.cutoff
    if cutoff is None:
        cutoff = 0.5 if peer.probabilities else threshold(learn.truth, out_of_fold)
    predicted = scores > cutoff
    if learn.truth.any(axis=1).all():
        predicted[np.arange(len(scores)), scores.argmax(axis=1)] = True
    search_result = {"chosen": setting, "n_settings": len(settings)}
    output = {"scores": scores, "predicted": predicted}
    output["search_result"] = np.array(json.dumps(search_result))
    if peer.key_rows is not None:
        output["key_rows"] = peer.key_rows
    np.savez(target, **output)


if __name__ == "__main__":
    main()
