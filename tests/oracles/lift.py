"""Lifted rows, written from the definition in float64."""

import numpy as np


def transformed(values, transform):
    if transform == 1:
        return np.sign(values) * np.sqrt(np.abs(values))
    if transform == 2:
        return np.sign(values) * np.log1p(np.abs(values))
    return values


def unit_rows(rows):
    norms = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    return rows / np.where(norms > 0, norms, 1)


def lift_bag(lift, rows, out):
    scaled = transformed(rows.astype(np.float64), lift.transform)
    scaled = (scaled - lift.shift.astype(np.float64)) * lift.scale.astype(np.float64)
    if lift.unit:
        scaled = unit_rows(scaled)
    parts = [scaled]
    n = len(lift.phases)
    if n:
        turns = scaled @ lift.frequencies.astype(np.float64) + lift.phases.astype(np.float64)
        parts.append(np.sqrt(2 / n) * np.cos(2 * np.pi * turns))
    if lift.context == 3:
        mean = scaled.mean(axis=0, keepdims=True)
        parts.append(np.tile(unit_rows(mean) if lift.unit else mean, (len(rows), 1)))
    elif lift.context:
        own = scaled if lift.context == 1 else np.concatenate(parts, axis=1)
        pooled = [own.max(axis=0), own.min(axis=0), own.mean(axis=0)][: 1 + lift.context]
        parts += [np.tile(vector, (len(rows), 1)) for vector in pooled]
    parts.append(np.ones((len(rows), 1)))
    out[:] = np.concatenate(parts, axis=1)


def lift_sparse_bag(
    lift, row_offsets, columns, values, start, stop, out_offsets, out_columns, out_values
):
    last = (2 if lift.context else 1) * len(lift.scale)
    place = 0
    out_offsets[0] = 0
    for row in range(start, stop):
        here = slice(row_offsets[row], row_offsets[row + 1])
        scaled = transformed(values[here].astype(np.float64), lift.transform)
        scaled = scaled * lift.scale.astype(np.float64)[columns[here]]
        if lift.unit:
            scaled = unit_rows(scaled[None])[0]
        end = place + len(scaled) + 1
        out_values[place:end] = [*scaled, 1]
        out_columns[place:end] = [*columns[here], last]
        out_offsets[row - start + 1] = place = end
