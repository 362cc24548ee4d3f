"""Hausdorff distances from their definition: loops over bags, and over rows of both."""

import numpy as np


def distance(left, right, is_average):
    """Distance of two bags, arrays (rows, features)."""
    to_right = [min(np.linalg.norm(a - b) for b in right) for a in left]
    to_left = [min(np.linalg.norm(a - b) for a in left) for b in right]
    nearest = np.array(to_right + to_left, np.float64)
    return nearest.mean() if is_average else nearest.max()


def distances(left_bags, right_bags, is_average):
    """Distances (n, m) of lists of bags."""
    return np.array([[distance(a, b, is_average) for b in right_bags] for a in left_bags])
