"""Documents as bags of sentences: JSON lines to sparse stores, a model and a page on it.

    python tools/examples/text_corpus.py documents.jsonl.gz OUT

Each line has ``id``, ``title``, ``body`` and ``topics``. Rows are TF-IDF vectors of sentences; the
page names the words of the sentences that earned a document its topics.
"""

from __future__ import annotations

from pathlib import Path

import cyclopts

import streammiml as sm
from streammiml_tools.convert.split_and_filter import Split
from streammiml_tools.corpora.reuters import fit_vocabulary, write_documents


def main(documents: str, out: str) -> None:
    """Split, write, train, evaluate, report."""
    source, folder = Path(documents), Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    split = Split.parse("train=0.7,test=0.3")
    # Words and their weights come from the training documents alone.
    vocabulary = fit_vocabulary(source, min_documents=2, split=split)
    vocabulary.save(folder / "vocabulary.json")
    paths = {part: folder / f"news-{part}.zarr" for part in ("train", "test")}
    train, test = write_documents(source, paths, vocabulary, split=split)
    print(train)
    sm.train(train, sm.TrainConfig(epochs=20), run=folder / "run", resume=True)
    figures = sm.evaluate(folder / "run", test)
    print(f"ranking loss {figures['ranking_loss']:.4f} on {figures['n_bags']} documents")
    print(sm.report(folder / "run", folder / "report.html", store=test))


if __name__ == "__main__":
    cyclopts.run(main)
