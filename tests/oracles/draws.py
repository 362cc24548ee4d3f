"""Draws in Python's own integers, which do not wrap unless told to."""

WORD = 1 << 64


def mixed(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


def step_key(seed, step):
    return mixed((mixed((seed + 0x9E3779B97F4A7C15) % WORD) + step * 0xD1342543DE82EF95) % WORD)


def below(key, draw, bound):
    return mixed((key + (draw + 1) * 0x9E3779B97F4A7C15) % WORD) * bound // WORD


def draw_label(key, relevant, dummy):
    choices = [*relevant, dummy]
    return int(choices[below(key, 0, len(choices))])


def draw_against(key, attempt, relevant, n_against):
    n_all = len(relevant) + n_against
    against = sorted(set(range(n_all)) - {int(label) for label in relevant})
    return against[below(key, attempt, n_against)]
