"""Tar archives for tests: members by name, in any format of tar."""

import io
import json
import tarfile

import numpy as np


def npy(array):
    """An array as the bytes of an npy file."""
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npz(*, compressed=False, **arrays):
    """Arrays as the bytes of an npz file."""
    out = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(out, **arrays)
    return out.getvalue()


def content_of(value):
    """Bytes and texts as they are, arrays as npy, everything else as JSON."""
    if isinstance(value, np.ndarray):
        return npy(value)
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def tar_bytes(members, form=tarfile.USTAR_FORMAT):
    """An archive of members by name; a TarInfo instead of a content is a member without content."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, value in members.items() if isinstance(members, dict) else members:
            if isinstance(value, tarfile.TarInfo):
                value.name = name
                archive.addfile(value)
                continue
            content = content_of(value)
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def write_tar(path, members, form=tarfile.USTAR_FORMAT):
    """Write an archive, and return its path."""
    path.write_bytes(tar_bytes(members, form))
    return path


def special(kind, **fields):
    """A member that is no plain file."""
    info = tarfile.TarInfo()
    info.type = kind
    for name, value in fields.items():
        setattr(info, name, value)
    return info
