"""Mini-batches of bags, WARP loss and max pooling in PyTorch; prints its looks as JSON.

``python msra_peer.py BAGS.npz RATE LABELS EPOCHS``. Adam, 128 bags a batch, shared space of 100
dimensions, five vectors a label: a label's score is the maximum over rows and vectors. Of each bag
one label (or the dummy) is ranked against the first violator of a random sequence of others.
"""

import json
import sys
import time

import numpy as np
import torch

BATCH, SHARED, VECTORS, PATIENCE = 128, 100, 5, 10


def scores_of(rows, shared, labels):
    """(bags, rows, d) → (bags, labels)."""
    projected = rows @ shared
    dots = projected.reshape(-1, shared.shape[1]) @ labels.reshape(-1, shared.shape[1]).T
    return dots.reshape(len(rows), -1, labels.shape[0], VECTORS).amax((1, 3))


def ranking_loss(rows, truth, shared, labels):
    losses = []
    for start in range(0, len(rows), 512):
        part = truth[start : start + 512]
        scores = scores_of(rows[start : start + 512], shared, labels)[:, :-1]
        wrong = scores[:, None, :] >= scores[:, :, None]
        pairs = part[:, :, None] & ~part[:, None, :]
        n_pairs = pairs.sum((1, 2))
        losses.append((wrong & pairs).sum((1, 2)) / n_pairs.clamp(min=1))
    return float(torch.cat(losses).double().mean())


def batch_loss(scores, truth, harmonic, generator):
    """``truth`` (bags, labels + 1); the dummy, last, is relevant to nobody but drawn too."""
    choice = truth.float()
    choice[:, -1] = 1
    wanted = torch.multinomial(choice, 1, generator=generator)
    others = ~truth
    others.scatter_(1, wanted, False)
    n_others = others.sum(1)
    tries = torch.multinomial(
        others.float(), scores.shape[1], replacement=True, generator=generator
    )
    tried = scores.gather(1, tries)
    margin = 1 + tried - scores.gather(1, wanted)
    within = torch.arange(scores.shape[1])[None] < n_others[:, None]
    violates = (margin > 0) & within
    found, first = violates.any(1), violates.float().argmax(1)
    rank = (n_others // (first + 1)).clamp(min=1)
    losses = harmonic[rank] * margin.gather(1, first[:, None])[:, 0]
    return torch.where(found, losses, torch.zeros(())).mean()


def main():
    place, rate, n_labels, epochs = sys.argv[1], float(sys.argv[2]), *map(int, sys.argv[3:])
    torch.set_num_threads(2)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    file = np.load(place)
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
    mine, looks, bad = torch.nonzero(~held)[:, 0], [], 0
    for _ in range(epochs):
        for part in mine[torch.randperm(len(mine), generator=generator)].split(BATCH):
            adam.zero_grad()
            batch_loss(
                scores_of(rows[part], shared, labels), truth[part], harmonic, generator
            ).backward()
            adam.step()
        with torch.no_grad():
            loss = ranking_loss(rows[held], truth[held][:, :-1], shared, labels)
        bad = 0 if not looks or loss < min(each for _, each in looks) else bad + 1
        looks.append((time.perf_counter() - begin, loss))
        if bad >= PATIENCE:
            break
    print(json.dumps({"looks": looks, "version": torch.__version__}))


if __name__ == "__main__":
    main()
