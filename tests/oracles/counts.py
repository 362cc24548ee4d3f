"""Metrics of who is predicted, one (bag, label) pair at a time, in exact fractions.

``bags`` is a list of (predicted, relevant): two sets of labels.
"""

from fractions import Fraction


def share(part, whole):
    return Fraction(part, whole) if whole else Fraction(0)


def mean(figures):
    return sum(figures) / len(figures)


def f1(predicted, relevant):
    return share(2 * len(predicted & relevant), len(predicted) + len(relevant))


def hamming_loss(bags, n_labels):
    return mean([Fraction(len(predicted ^ relevant), n_labels) for predicted, relevant in bags])


def subset_accuracy(bags, _):
    return mean([Fraction(predicted == relevant) for predicted, relevant in bags])


def sample_f1(bags, _):
    return mean([f1(predicted, relevant) for predicted, relevant in bags])


def with_label(bags, label):
    """Bags that are predicted the label, and bags that carry it."""
    return (
        {i for i, (predicted, _) in enumerate(bags) if label in predicted},
        {i for i, (_, relevant) in enumerate(bags) if label in relevant},
    )


def macro_f1(bags, n_labels):
    return mean([f1(*with_label(bags, label)) for label in range(n_labels)])


def micro_f1(bags, _):
    pairs = [{(i, label) for i, bag in enumerate(bags) for label in bag[which]} for which in (0, 1)]
    return f1(*pairs)


def per_label(bags, n_labels):
    rows = []
    for label in range(n_labels):
        predicted, relevant = with_label(bags, label)
        hits = len(predicted & relevant)
        rows.append(
            {
                "label": label,
                "support": len(relevant),
                "predicted": len(predicted),
                "precision": float(share(hits, len(predicted))),
                "recall": float(share(hits, len(relevant))),
                "f1": float(f1(predicted, relevant)),
            }
        )
    return rows


def key_instances(bags):
    """Right, counted and unknown pairs; a bag is (labels of its rows, key row of each label, Y)."""
    right = counted = unknown = 0
    for row_labels, key_rows, relevant in bags:
        for label in relevant:
            if label in row_labels:
                counted += 1
                right += row_labels[key_rows[label]] == label
                unknown += row_labels[key_rows[label]] == -1
    return right, counted, unknown
