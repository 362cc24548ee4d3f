"""Ranking loss by looking at every pair."""

from fractions import Fraction


def wrong_pairs(scores, relevant):
    irrelevant = sorted(set(range(len(scores))) - {int(label) for label in relevant})
    return sum(not scores[other] < scores[label] for label in relevant for other in irrelevant)


def ranking_loss_sum(scores, label_offsets, labels):
    """Exactly, in bags."""
    total = Fraction(0)
    for bag, row in enumerate(scores):
        relevant = labels[label_offsets[bag] : label_offsets[bag + 1]]
        pairs = len(relevant) * (len(row) - len(relevant))
        total += Fraction(wrong_pairs(row, relevant), pairs) if pairs else 0
    return total


def relevant_ranks(scores, label_offsets, labels, out):
    for bag, row in enumerate(scores):
        relevant = labels[label_offsets[bag] : label_offsets[bag + 1]]
        for place, label in enumerate(relevant, label_offsets[bag]):
            out[0, place] = sum(row > row[label])
            out[1, place] = sum(row == row[label])
            out[2, place] = sum(row[:label] == row[label])
            out[3, place] = sum(row[relevant] >= row[label])
