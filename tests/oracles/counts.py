"""Metrics of who is predicted, one (bag, label) pair at a time, in exact fractions.

``bags`` is a list of (predicted, relevant): two sets of labels.
"""

from fractions import Fraction


def share(part, total):
    return Fraction(part, total) if total else Fraction(0)


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


def macro_f1_variance(bags, groups, n_labels):
    """The jackknife's, leaving out one group of bags after the other; weights by their sizes."""
    n, of_all_bags = len(bags), macro_f1(bags, n_labels)
    kinds = sorted(set(groups))
    left_out = []
    for kind in kinds:
        others = [bag for bag, group in zip(bags, groups, strict=True) if group != kind]
        left_out.append((Fraction(n, n - len(others)), macro_f1(others, n_labels)))
    middle = len(kinds) * of_all_bags - sum((1 - 1 / h) * without for h, without in left_out)
    squares = [
        (h * of_all_bags - (h - 1) * without - middle) ** 2 / (h - 1) for h, without in left_out
    ]
    return mean(squares)


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
