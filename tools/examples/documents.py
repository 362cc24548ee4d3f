"""Documents as bags of sentences: which topics a document has, and which sentence says so.

    python tools/examples/documents.py OUT

The documents are made here, from words of five topics and words of none. Rows are TF-IDF vectors of
sentences, which are sparse; the text of each sentence is kept beside its vector.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cyclopts
import matplotlib.pyplot as plt
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

import streammiml as sm

WORDS = {
    "energy": "oil barrel gas pipeline refinery crude grid power",
    "farming": "wheat harvest corn soil tractor crop rain farmer",
    "finance": "bank loan rate bond market shares credit yield",
    "shipping": "vessel harbour cargo port crew freight strait dock",
    "sport": "match goal coach season league injury team final",
}
COMMON = "today officials said that the new plan would change after long talks this week"


def make_documents(n_documents: int, *, seed: int) -> tuple[list[list[str]], list[list[str]]]:
    """Return the sentences and the topics of each document."""
    rng = np.random.default_rng([seed, n_documents])
    documents, topics = [], []
    for _ in range(n_documents):
        own = sorted(rng.choice(list(WORDS), rng.integers(1, 3), replace=False).tolist())
        sentences = []
        for topic in [*own, *rng.choice([*own, None, None, None], 4)]:
            # A word of any topic may turn up anywhere.
            stray = rng.choice(" ".join(WORDS.values()).split(), rng.integers(2))
            words = [*stray, *rng.choice(COMMON.split(), 5, replace=False)]
            if topic is not None:
                words += [*rng.choice(WORDS[topic].split(), 2, replace=False)]
            sentences.append(" ".join(rng.permutation(words)).capitalize() + ".")
        documents.append(rng.permutation(sentences).tolist())
        topics.append(own)
    return documents, topics


def write_stores(folder: Path) -> TfidfVectorizer:
    """Write stores of documents; words and their weights come from the training documents."""
    vectorizer = TfidfVectorizer(dtype=np.float32)
    for part, n_documents, seed in (("train", 1500, 1), ("test", 300, 2)):
        documents, topics = make_documents(n_documents, seed=seed)
        if part == "train":
            vectorizer.fit(sentence for document in documents for sentence in document)
        store = sm.write_store(
            folder / f"{part}.zarr",
            [vectorizer.transform(document) for document in documents],
            topics,
            keep={"sentence": documents},
        )
        print(f"{part}: {store.n_bags} documents, {store.n_rows:,} sentences, sparse")
    return vectorizer


def draw(model: sm.Model, document: list[str], vectors: Any, out: Path) -> None:
    """Draw how strongly each sentence speaks for each topic."""
    scores = sm.row_scores(model, [vectors])
    margins = scores.scores - scores.dummy_score
    limit = np.abs(margins).max()
    figure, panel = plt.subplots(figsize=(11, 0.42 * len(document) + 1.2), layout="constrained")
    shown = panel.imshow(margins, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
    panel.set_xticks(range(len(WORDS)), scores.label_names)
    panel.set_yticks(range(len(document)), document)
    panel.xaxis.tick_top()
    figure.colorbar(shown, label="score − threshold")
    figure.savefig(out, dpi=110)


def main(out: str) -> None:
    """Make documents, train, measure, and show what the sentences of one document say."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    vectorizer = write_stores(folder)
    model = sm.train(folder / "train.zarr", sm.TrainConfig(epochs=15), run=folder / "run")
    figures = sm.evaluate(model, folder / "test.zarr")
    print(f"average precision {figures['average_precision']:.3f}")
    print(f"ranking loss {figures['ranking_loss']:.4f}")

    # Documents that arrive later need the same vectorizer, and no store.
    [document], [topics] = make_documents(1, seed=7)
    vectors = vectorizer.transform(document)
    answer = sm.predict(model, [vectors])
    print("a new document, about", " and ".join(topics))
    names = sorted(WORDS)
    for label, row in zip(answer.labels[0], answer.key_instances[0], strict=True):
        print(f"{names[label]}: {document[row]}")
    draw(model, document, vectors, folder / "documents.png")


if __name__ == "__main__":
    cyclopts.run(main)
