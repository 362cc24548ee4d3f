"""Record a run in MLflow: settings, the curves of the history, and the model.

    pip install mlflow-skinny
    python tools/examples/track_with_mlflow.py STORE RUN

``MLFLOW_TRACKING_URI`` says where MLflow keeps its records; by default in this folder. The same
command after an interruption resumes the training, and records it as another run of MLflow.

Tested with mlflow-skinny 3.17.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cyclopts
import mlflow

import streammiml as sm


def main(store: str, run: str, epochs: int = 10) -> None:
    """Train, and log each line of the history."""
    config = sm.TrainConfig(epochs=epochs, validation=0.1)

    def watch(progress: Any) -> None:
        if not progress.is_line:
            return
        values = {
            "loss": progress.loss,
            "share_of_violations": progress.share_of_violations,
            "validation_loss": progress.validation_loss,
            "steps_per_second": progress.steps_per_second,
        }
        known = {name: value for name, value in values.items() if value is not None}
        mlflow.log_metrics(known, step=progress.step)

    with mlflow.start_run(run_name=Path(run).name):
        model = sm.train(store, config, run=run, resume=True, watch=watch)
        mlflow.log_params(model.settings)
        mlflow.log_artifact(str(Path(run) / "model.safetensors"))
        loss = sm.evaluate(model, store, metrics=["ranking_loss"])["ranking_loss"]
        mlflow.log_metric("ranking_loss_of_store", loss)
    print(f"{model}, ranking loss {loss:.4f}")


if __name__ == "__main__":
    cyclopts.run(main)
