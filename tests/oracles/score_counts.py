"""Twins of the kernels of score counts: tables are a dictionary of key to count for each label."""

from collections import Counter
from fractions import Fraction


def score_keys(scores):
    """Place of each score among all different scores, for each label; ``scores`` is a matrix."""
    order = sorted({score for row in scores for score in row})
    return [[order.index(row[label]) for row in scores] for label in range(len(scores[0]))]


def count_keys(keys, starts, stops):
    return [Counter(keys[a:b]) for a, b in zip(starts, stops, strict=True)]


def merge_counts(one, other, dropped):
    out = []
    for pair in zip(one, other, strict=True):
        counts = Counter()
        for table in pair:
            for key, count in table.items():
                counts[key >> dropped << dropped] += count
        out.append(counts)
    return out


def sizes(table, n_bits):
    return [
        sum(len({key >> dropped for key in counts}) for counts in table)
        for dropped in range(n_bits + 1)
    ]


def curve_sums(carried, others):
    """Totals, and the five sums of one label, pair by pair."""
    below = ties = precision = lowest = highest = Fraction(0)
    for key, count in carried.items():
        for other, n in others.items():
            below += count * n * (Fraction(other < key) + Fraction(other == key, 2))
            ties += count * n * (other == key)
        hits = sum(n for own, n in carried.items() if own >= key)
        wrong = sum(n for own, n in others.items() if own >= key)
        tied = others.get(key, 0)
        precision += count * Fraction(hits, hits + wrong)
        highest += count * Fraction(hits, hits + wrong - tied)
        # The worst order of equal scores: all others first, then the carried ones, one by one.
        lowest += sum(Fraction(own, own + wrong) for own in range(hits - count + 1, hits + 1))
    totals = sum(carried.values()), sum(others.values())
    return totals, [below, ties, precision, lowest, highest]
