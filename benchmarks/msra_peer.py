"""PyTorch training with mini-batches of bags, WARP loss and max pooling; prints JSON.

``python msra_peer.py BAGS.npz RATE LABELS EPOCHS``. Adam, batches of 128 bags, a shared space of
100 dimensions, five vectors for each label; a label's score is the maximum over rows and vectors.
For each bag, one of its labels (or the dummy) is ranked against the first violating label in a
random sequence of other labels. ``looks`` has (seconds, ranking loss) of each validation.
"""

import json
import sys
import time

import numpy as np
import torch

BATCH, SHARED, VECTORS, PATIENCE = 128, 100, 5, 10


def scores_of(rows, shared, labels):
    """Scores (bags, labels) of rows (bags, rows, d)."""
    projected = rows @ shared
    dots = projected.reshape(-1, shared.shape[1]) @ labels.reshape(-1, shared.shape[1]).T
    return dots.reshape(len(rows), -1, labels.shape[0], VECTORS).amax((1, 3))


def ranking_loss(rows, truth, shared, labels):
    losses = []
    for start in range(0, len(rows), 512):
        part = truth[start : start + 512]
        scores = scores_of(rows[start : start + 512], shared, labels)[:, :-1]
        misordered = scores[:, None, :] >= scores[:, :, None]
        pairs = part[:, :, None] & ~part[:, None, :]
        n_pairs = pairs.sum((1, 2))
        losses.append((misordered & pairs).sum((1, 2)) / n_pairs.clamp(min=1))
    return float(torch.cat(losses).double().mean())


def batch_loss(scores, truth, harmonic, generator):
    """``truth`` is (bags, labels + 1). The last label, the dummy, is in no bag but drawn, too."""
    choice = truth.float()
    choice[:, -1] = 1
    relevant = torch.multinomial(choice, 1, generator=generator)
    others = ~truth
    others.scatter_(1, relevant, False)
    n_others = others.sum(1)
    tries = torch.multinomial(
        others.float(), scores.shape[1], replacement=True, generator=generator
    )
    tried = scores.gather(1, tries)
    margin = 1 + tried - scores.gather(1, relevant)
    within = torch.arange(scores.shape[1])[None] < n_others[:, None]
    violates = (margin > 0) & within
    has_violator, first = violates.any(1), violates.float().argmax(1)
    rank = (n_others // (first + 1)).clamp(min=1)
    losses = harmonic[rank] * margin.gather(1, first[:, None])[:, 0]
    return torch.where(has_violator, losses, torch.zeros(())).mean()


def main():
    path, rate, n_labels, epochs = sys.argv[1], float(sys.argv[2]), *map(int, sys.argv[3:])
    torch.set_num_threads(2)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    file = np.load(path)
    rows = torch.tensor(file["rows"])
    rows = rows / rows.norm(dim=2, keepdim=True)
    rows = torch.cat([rows, torch.ones(*rows.shape[:2], 1)], 2)
    truth = torch.zeros(len(rows), n_labels + 1, dtype=torch.bool)
    counts = np.diff(file["label_offsets"])
    truth[np.repeat(np.arange(len(rows)), counts), file["labels"]] = True
    held = torch.zeros(len(rows), dtype=torch.bool)
    held[file["held_out"]] = True
    begin = time.perf_counter()
    d = rows.shape[2]
    shared = (torch.randn(d, SHARED) / d**0.5).requires_grad_()
    labels = (torch.randn(n_labels + 1, VECTORS, SHARED) / d**0.5).requires_grad_()
    harmonic = torch.cat([torch.zeros(1), (1 / torch.arange(1, n_labels + 2)).cumsum(0)])
    adam = torch.optim.Adam([shared, labels], lr=rate)
    training, looks, n_worse = torch.nonzero(~held)[:, 0], [], 0
    for _ in range(epochs):
        order = torch.randperm(len(training), generator=generator)
        for part in training[order].split(BATCH):
            adam.zero_grad()
            batch_loss(
                scores_of(rows[part], shared, labels), truth[part], harmonic, generator
            ).backward()
            adam.step()
        with torch.no_grad():
            loss = ranking_loss(rows[held], truth[held][:, :-1], shared, labels)
        improved = not looks or loss < min(earlier for _, earlier in looks)
        n_worse = 0 if improved else n_worse + 1
        looks.append((time.perf_counter() - begin, loss))
        if n_worse >= PATIENCE:
            break
    print(json.dumps({"looks": looks, "version": torch.__version__}))


if __name__ == "__main__":
    main()
