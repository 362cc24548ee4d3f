"""Gated attention in PyTorch, trained on a store that may be larger than memory.

    python tools/examples/attention_mil.py STORE FOLDER [--epochs 5] [--memory 512MiB]

Each label has its own attention over the rows of a bag, so the attention says which row earned the
label. FOLDER gets ``checkpoint.pt``. After a kill, the same command goes on with the next batch of
the last checkpoint.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import cyclopts
import torch
from torch import nn

import streammiml as sm
from streammiml.bags.block import SparseRows


class GatedAttention(nn.Module):
    """Attention-based pooling with gates, one attention per label."""

    def __init__(self, n_features: int, n_labels: int, width: int = 64) -> None:
        super().__init__()
        self.rows = nn.Sequential(nn.Linear(n_features, width), nn.ReLU())
        self.content, self.gate = nn.Linear(width, width), nn.Linear(width, width)
        self.attention = nn.Linear(width, n_labels)
        self.weights = nn.Parameter(torch.randn(n_labels, width) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(n_labels))

    def forward(self, rows: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Scores (bags, labels) of bags whose rows lie one after the other."""
        n_bags = len(offsets) - 1
        bag = torch.repeat_interleave(torch.arange(n_bags), offsets.diff())
        hidden = self.rows(rows)
        logits = self.attention(torch.tanh(self.content(hidden)) * torch.sigmoid(self.gate(hidden)))
        index = bag[:, None].expand_as(logits)
        highest = logits.new_full((n_bags, logits.shape[1]), -torch.inf)
        highest = highest.scatter_reduce(0, index, logits.detach(), "amax")
        shares = torch.exp(logits - highest[bag])
        total = torch.zeros_like(highest).index_add(0, bag, shares)
        scores = torch.zeros_like(highest).index_add(0, bag, shares * (hidden @ self.weights.T))
        return scores / total + self.bias


def targets(batch: Any, n_labels: int) -> torch.Tensor:
    """1 for each label that a bag carries, 0 for the others."""
    out = torch.zeros((len(batch), n_labels))
    sizes = torch.from_numpy(batch.label_offsets).diff()
    bag = torch.repeat_interleave(torch.arange(len(batch)), sizes)
    out[bag, torch.from_numpy(batch.label_indices).long()] = 1
    return out


def save(path: Path, **state: Any) -> None:
    """Replace the checkpoint: it is the old one or the new one, never half of it."""
    temporary = path.with_suffix(".partial")
    with temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def main(
    store: str,
    folder: str,
    *,
    epochs: int = 5,
    memory: str = "512MiB",
    batch_bags: int = 32,
    save_every: int = 100,
) -> None:
    """Train, and save a checkpoint every ``save_every`` batches and after each epoch."""
    torch.manual_seed(0)
    bags = sm.open_store(store)
    model = GatedAttention(bags.n_features, bags.n_labels)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_of = nn.BCEWithLogitsLoss()
    Path(folder).mkdir(parents=True, exist_ok=True)
    checkpoint = Path(folder) / "checkpoint.pt"
    with sm.stream(bags, memory=memory, batch_bags=batch_bags) as batches:

        def save_all() -> None:
            save(
                checkpoint,
                model=model.state_dict(),
                optimizer=optimizer.state_dict(),
                stream=batches.state_dict(),
            )

        if checkpoint.exists():
            state = torch.load(checkpoint, weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            batches.load_state_dict(state["stream"])
            print(f"goes on in epoch {batches.epoch}, {len(batches)} batches are left of it")
        while batches.epoch < epochs:
            epoch, total, n_batches = batches.epoch, 0.0, 0
            for number, batch in enumerate(batches, 1):
                rows = batch.rows.dense() if isinstance(batch.rows, SparseRows) else batch.rows
                scores = model(torch.from_numpy(rows).float(), torch.from_numpy(batch.offsets))
                loss = loss_of(scores, targets(batch, bags.n_labels))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total, n_batches = total + float(loss.detach()), number
                if number % save_every == 0:
                    save_all()
            save_all()
            print(f"epoch {epoch}: loss {total / n_batches:.4f}", flush=True)


if __name__ == "__main__":
    cyclopts.run(main)
