"""Record a run in Weights & Biases: settings, the curves of the history, and the result.

    pip install wandb
    python tools/examples/track_with_wandb.py STORE RUN

``WANDB_MODE=offline`` keeps the records in this folder, without an account.

Tested with wandb 0.29.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cyclopts
import wandb

import streammiml as sm


def main(store: str, run: str, epochs: int = 10) -> None:
    """Train, and log each line of the history."""
    config = sm.TrainConfig(epochs=epochs, validation=0.1)
    with wandb.init(project="streammiml", name=Path(run).name, config=config.given()) as record:

        def watch(progress: Any) -> None:
            if progress.is_line:
                values = {"loss": progress.loss, "validation_loss": progress.validation_loss}
                known = {name: value for name, value in values.items() if value is not None}
                record.log(known, step=progress.step)

        model = sm.train(store, config, run=run, resume=True, watch=watch)
        loss = sm.evaluate(model, store, metrics=["ranking_loss"])["ranking_loss"]
        record.summary["ranking_loss_of_store"] = loss
    print(f"{model}, ranking loss {loss:.4f}")


if __name__ == "__main__":
    cyclopts.run(main)
