"""Peers of the kernel; prints their steps or samples per second as JSON.

``python kernel_peers.py PEER BAGS.npz d m K L z SMOKE``. *torch*: MIMLfast as the paper's algorithm
box states it, one bag at a time. *torch-at-once*: the same, but one product scores all labels
before a violating label is searched. *lightfm*: LightFM's WARP loss; bags are users with the mean
of their rows as features, labels are items.
"""

import json
import sys
import time
from importlib import import_module

import numpy as np


def bags_of(path):
    """Rows of each bag, labels of each bag."""
    bags = np.load(path)
    rows = np.split(bags["rows"], bags["bag_offsets"][1:-1])
    return rows, np.split(bags["labels"], bags["label_offsets"][1:-1])


def torch_step(torch, rows, own, shared, labels, rng, rate, at_once):
    """One step of MIMLfast; ``shared`` (d, m), ``labels`` (L + 1, K, m)."""
    dummy = labels.shape[0] - 1
    y = int(rng.choice([*own, dummy]))
    irrelevant = np.setdiff1d(np.arange(dummy + (y != dummy)), own)
    projected = rows @ shared
    n_sub = labels.shape[1]
    tries = rng.choice(irrelevant, len(irrelevant))
    if at_once:
        dots = projected @ labels.reshape(-1, labels.shape[2]).T
        scores = dots.amax(0).reshape(-1, n_sub).amax(1).numpy()
        violators = np.flatnonzero(scores[tries] > scores[y] - 1)
        if not len(violators):
            return
        v, other = violators[0] + 1, int(tries[violators[0]])
        best_at = int((projected @ labels[y].T).argmax())
        other_best_at = int((projected @ labels[other].T).argmax())
    else:
        dots = projected @ labels[y].T
        best_at, bound = int(dots.argmax()), float(dots.max()) - 1
        v = 0
        for other in tries:
            v += 1
            dots = projected @ labels[other].T
            if float(dots.max()) > bound:
                other_best_at = int(dots.argmax())
                break
        else:
            return
    weight = rate * float((1 / np.arange(1, len(irrelevant) // v + 1)).sum())
    (i, k), (j, other_k) = divmod(best_at, n_sub), divmod(other_best_at, n_sub)
    w, other_w = labels[y, k].clone(), labels[other, other_k].clone()
    labels[y, k] += weight * projected[i]
    labels[other, other_k] -= weight * projected[j]
    shared -= weight * (torch.outer(rows[j], other_w) - torch.outer(rows[i], w))
    for vector in (labels[y, k], labels[other, other_k]):
        vector *= (10 / vector.norm()).clamp(max=1)
    shared *= (10 / shared.norm(dim=1, keepdim=True)).clamp(max=1)


def run_torch(path, shape, smoke, at_once):
    torch = import_module("torch")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    d, m, n_sub, n_labels, _ = shape
    rows, labels = bags_of(path)
    rows = [torch.tensor(np.column_stack([x, np.ones(len(x), np.float32)])) for x in rows]
    shared = torch.randn(d, m) / d**0.5
    vectors = torch.randn(n_labels + 1, n_sub, m) / d**0.5
    rng = np.random.default_rng(0)
    n_rounds, n = (1, 20) if smoke else (8, 500)
    rates = []
    with torch.no_grad():
        for _ in range(n_rounds):
            start = time.thread_time()
            for bag in rng.integers(0, len(rows), n):
                torch_step(torch, rows[bag], labels[bag], shared, vectors, rng, 0.02, at_once)
            rates.append(n / (time.thread_time() - start))
    return {"per_second": max(rates), "n": n_rounds * n, "version": torch.__version__}


def run_lightfm(path, shape, smoke):
    lightfm, sp = import_module("lightfm"), import_module("scipy.sparse")
    _, m, _, n_labels, _ = shape
    rows, labels = bags_of(path)
    users = sp.csr_matrix(np.array([np.append(x.mean(axis=0), 1) for x in rows], np.float32))
    owners = np.repeat(np.arange(len(rows)), [len(own) for own in labels])
    items = np.concatenate(labels)
    ones = np.ones(len(items), np.float32)
    interactions = sp.coo_matrix((ones, (owners, items)), (len(rows), n_labels))
    model = lightfm.LightFM(no_components=m, loss="warp", max_sampled=n_labels, random_state=0)
    rates = []
    for _ in range(1 if smoke else 5):
        start = time.thread_time()
        model.fit_partial(interactions, user_features=users, epochs=1, num_threads=1)
        rates.append(len(items) / (time.thread_time() - start))
    return {"per_second": max(rates), "n": len(rates) * len(items), "version": lightfm.__version__}


if __name__ == "__main__":
    peer, path, *shape, smoke = sys.argv[1:]
    shape = tuple(map(int, shape))
    if peer == "lightfm":
        result = run_lightfm(path, shape, smoke == "1")
    else:
        result = run_torch(path, shape, smoke == "1", peer == "torch-at-once")
    print(json.dumps(result))
