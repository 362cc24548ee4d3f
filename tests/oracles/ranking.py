"""Metrics of the order of labels, one bag and one label at a time, exactly where it goes.

``bags`` is a list of (scores, relevant): a list of L scores and a set of labels.
"""

import math
from fractions import Fraction


def mean(figures):
    return sum(figures) / len(figures)


def listed(scores):
    """Labels, the highest score first; of equal ones the lowest label."""
    return sorted(range(len(scores)), key=lambda label: (-scores[label], label))


def one_error(bags):
    return mean([Fraction(listed(scores)[0] not in relevant) for scores, relevant in bags])


def precision_at(bags, k):
    return mean([Fraction(len(relevant & set(listed(s)[:k])), k) for s, relevant in bags])


def perr(bags):
    return mean_of_labelled(
        Fraction(len(relevant & set(listed(scores)[: len(relevant)])), len(relevant))
        for scores, relevant in bags
        if relevant
    )


def hit_at(bags, k):
    return mean_of_labelled(
        Fraction(bool(relevant & set(listed(scores)[:k]))) for scores, relevant in bags if relevant
    )


def mean_of_labelled(figures):
    figures = list(figures)
    return mean(figures) if figures else None


def coverage(bags):
    shares = []
    for scores, relevant in bags:
        ranks = [sum(other >= scores[label] for other in scores) for label in relevant]
        shares.append(Fraction(max(ranks, default=0) - 1, len(scores)))
    return mean(shares)


def ranking_loss(bags):
    losses = []
    for scores, relevant in bags:
        others = set(range(len(scores))) - relevant
        wrong = sum(scores[other] >= scores[label] for label in relevant for other in others)
        losses.append(Fraction(wrong, len(relevant) * len(others)) if relevant and others else 0)
    return mean([Fraction(one) for one in losses])


def average_precision(bags):
    precisions = []
    for scores, relevant in bags:
        if not relevant or len(relevant) == len(scores):
            precisions.append(Fraction(1))
            continue
        shares = []
        for label in relevant:
            above = {other for other in range(len(scores)) if scores[other] >= scores[label]}
            shares.append(Fraction(len(above & relevant), len(above)))
        precisions.append(mean(shares))
    return mean(precisions)


def ndcg_at(bags, k):
    """The mean over all orders of equal scores, of which each label takes each place equally."""
    gains = []
    for scores, relevant in bags:
        gain = [1 / math.log2(place + 2) if place < k else 0 for place in range(len(scores))]
        got = 0.0
        for label in relevant:
            higher = sum(other > scores[label] for other in scores)
            equal = sum(other == scores[label] for other in scores)
            got += sum(gain[higher : higher + equal]) / equal
        gains.append(got / sum(gain[: len(relevant)]) if relevant else 0)
    return mean(gains)
