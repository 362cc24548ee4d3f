"""Videos as bags of frames: what happens in a video, and when.

    python tools/examples/video.py OUT

The videos are made here: one to two minutes at a frame a second, each frame with 24 features, as a
network that sees single frames would give. A video carries the names of what happens in it; the
second of each frame is kept beside its features.
"""

from __future__ import annotations

from pathlib import Path

import cyclopts
import matplotlib.pyplot as plt
import numpy as np

import streammiml as sm

Arrays = list[np.ndarray]
LABELS = ("applause", "goal", "interview", "rain")
N_FEATURES = 24


def make_videos(n_videos: int, *, seed: int) -> tuple[Arrays, list[list[str]], Arrays]:
    """Return the frames and labels of each video, and what happens in each second."""
    looks = 1.2 * np.random.default_rng(0).normal(size=(len(LABELS), N_FEATURES))
    rng = np.random.default_rng([seed, n_videos])
    frames, labels, happens = [], [], []
    for _ in range(n_videos):
        seconds = int(rng.integers(60, 121))
        # Neighbouring frames look alike: the scene drifts.
        drift = np.cumsum(rng.normal(size=(seconds, N_FEATURES)), axis=0)
        scene = drift / np.abs(drift).max() * 3 + 1.0 * rng.normal(size=drift.shape)
        on = np.zeros((seconds, len(LABELS)), bool)
        for label in rng.choice(len(LABELS), rng.integers(0, 4), replace=False):
            start = rng.integers(0, seconds - 20)
            on[start : start + rng.integers(5, 20), label] = True
        frames.append(scene + on @ looks)
        labels.append([name for name, column in zip(LABELS, on.T, strict=True) if column.any()])
        happens.append(on)
    return frames, labels, happens


def write_store(folder: Path, part: str, n_videos: int, seed: int) -> Arrays:
    """Write a store of videos with the second of each frame; return what happens in them."""
    frames, labels, happens = make_videos(n_videos, seed=seed)
    store = sm.write_store(
        folder / f"{part}.zarr",
        frames,
        labels,
        label_names=LABELS,
        keep={"second": [np.arange(len(video)) for video in frames]},
    )
    print(f"{part}: {store.n_bags} videos, {store.n_rows:,} frames")
    return happens


def timeline(model: sm.Model, rows: np.ndarray, on: np.ndarray, out: Path) -> None:
    """Draw the margin of each label over time, with what happens shaded."""
    scores = sm.row_scores(model, [rows])
    margins = scores.scores - scores.dummy_score
    figure, panels = plt.subplots(
        len(LABELS), sharex=True, sharey=True, figsize=(11, 5), layout="constrained"
    )
    for label, panel in enumerate(panels):
        panel.axhline(0, color="grey", linewidth=0.8)
        panel.plot(margins[:, label], color="tab:blue")
        low, high = 1.1 * margins.min(), 1.1 * margins.max()
        panel.fill_between(range(len(on)), low, high, where=on[:, label], color="gold", alpha=0.5)
        panel.set_ylabel(LABELS[label])
        panel.set_ylim(low, high)
    panels[-1].set_xlabel("second")
    figure.suptitle("score − threshold; shaded: when it happens")
    figure.savefig(out, dpi=110)


def main(out: str) -> None:
    """Make videos, train, measure, and follow one video of the test store."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    write_store(folder, "train", 800, seed=1)
    happens = write_store(folder, "test", 200, seed=2)
    model = sm.train(folder / "train.zarr", sm.TrainConfig(epochs=15), run=folder / "run")
    figures = sm.evaluate(model, folder / "test.zarr")
    print(f"average precision {figures['average_precision']:.3f}")

    test = sm.open_store(folder / "test.zarr")
    video = next(i for i in range(test.n_bags) if len(test[i].labels) == 3)
    answer = sm.predict(model, [test[video].rows])
    seconds = test[video].kept["second"]
    print(f"video {video}, of {len(seconds)} seconds")
    for label, frame in zip(answer.labels[0], answer.key_instances[0], strict=True):
        print(f"{LABELS[label]}: most of all in second {seconds[frame]}")
    timeline(model, test[video].rows, happens[video], folder / "video.png")


if __name__ == "__main__":
    cyclopts.run(main)
