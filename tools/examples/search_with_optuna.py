"""Search settings with Optuna; trials that fall behind are ended early.

    pip install optuna
    python tools/examples/search_with_optuna.py STORE OUT.toml [TRIALS]

Every look at the held-out bags is reported to Optuna, which ends a trial whose loss is above the
median of the trials before. OUT.toml is for ``streammiml train --config OUT.toml``.

Tested with optuna 5.0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cyclopts
import optuna

import streammiml as sm


def main(store: str, out: str, trials: int = 20) -> None:
    """Minimise the ranking loss of held-out bags."""
    bags = sm.open_store(store)

    def loss_of(trial: optuna.Trial) -> float:
        config = sm.TrainConfig(
            shared_dim=trial.suggest_int("shared_dim", 10, 200, log=True),
            subconcepts=trial.suggest_int("subconcepts", 1, 8),
            step_size=trial.suggest_float("step_size", 1e-3, 1e-1, log=True),
            max_norm=trial.suggest_float("max_norm", 1.0, 20.0, log=True),
            preset="plain",
            validation=0.2,
            epochs=20,
        )
        best = [1.0]

        def watch(progress: Any) -> None:
            if progress.validation_loss is not None:
                best[0] = min(best[0], progress.validation_loss)
                trial.report(progress.validation_loss, progress.step)
                if trial.should_prune():
                    raise optuna.TrialPruned

        sm.train(bags, config, watch=watch)
        return best[0]

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(loss_of, n_trials=trials)
    lines = [f"{name} = {value}" for name, value in study.best_params.items()]
    Path(out).write_text("\n".join(lines) + "\n")
    ended = [trial.state.name for trial in study.trials]
    print(f"ranking loss {study.best_value:.4f}, {ended.count('PRUNED')} of {trials} ended early")


if __name__ == "__main__":
    cyclopts.run(main)
