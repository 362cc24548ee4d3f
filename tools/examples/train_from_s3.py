"""Train straight from an object store, and write the predictions here.

    AWS_ACCESS_KEY_ID=… python tools/examples/train_from_s3.py s3://bucket/corpus.zarr OUT

Credentials, region and ``AWS_ENDPOINT_URL`` come from the environment. Bags are streamed: nothing
of the store is copied to disk, and the model is the one that a local copy would give.
"""

from __future__ import annotations

from pathlib import Path

import cyclopts

import streammiml as sm


def main(url: str, out: str) -> None:
    """Open, train, predict."""
    store = sm.open_store(url)
    print(store)
    # Larger blocks mean fewer requests; how well bags are mixed is printed by train --dry-run.
    config = sm.TrainConfig(epochs=5, memory="512MiB")
    sm.train(store, config, run=Path(out) / "run", resume=True)
    done = sm.predict(Path(out) / "run", store, Path(out) / "predictions", top_k=5)
    print(f"{done['n_bags']} bags scored, {done['labels_per_bag']:.2f} labels each")


if __name__ == "__main__":
    cyclopts.run(main)
