"""Areas under curves, one pair of scores at a time, in exact fractions.

A list of scores is a list of (score, whether the bag carries the label).
"""

from fractions import Fraction

from tests.oracles.ranking import listed


def auc(scores):
    """Share of (carried, other) pairs in the right order; None if there are no pairs."""
    carried = [score for score, is_carried in scores if is_carried]
    others = [score for score, is_carried in scores if not is_carried]
    if not carried or not others:
        return None
    right = sum(Fraction(a > b) + Fraction(a == b, 2) for a in carried for b in others)
    return right / (len(carried) * len(others))


def average_precision(scores, n_relevant=None):
    """Sum of precision × gain in recall over all thresholds; None without carried scores."""
    n_relevant = sum(is_carried for _, is_carried in scores) if n_relevant is None else n_relevant
    if not n_relevant:
        return None
    area = recall = Fraction(0)
    for threshold in sorted({score for score, _ in scores}, reverse=True):
        chosen = [is_carried for score, is_carried in scores if score >= threshold]
        gain = Fraction(sum(chosen), n_relevant) - recall
        area += gain * Fraction(sum(chosen), len(chosen))
        recall += gain
    return area


def mean(figures):
    known = [figure for figure in figures if figure is not None]
    return sum(known) / len(known) if known else None


def of_label(bags, label):
    return [(scores[label], label in relevant) for scores, relevant in bags]


def of_all_pairs(bags):
    return [pair for label in range(len(bags[0][0])) for pair in of_label(bags, label)]


def macro_auc(bags):
    return mean([auc(of_label(bags, label)) for label in range(len(bags[0][0]))])


def micro_auc(bags):
    return auc(of_all_pairs(bags))


def macro_average_precision(bags):
    return mean([average_precision(of_label(bags, label)) for label in range(len(bags[0][0]))])


def micro_average_precision(bags):
    return average_precision(of_all_pairs(bags))


def gap_at(bags, k):
    first = [(s[label], label in relevant) for s, relevant in bags for label in listed(s)[:k]]
    return average_precision(first, sum(len(relevant) for _, relevant in bags))
