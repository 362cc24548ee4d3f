"""Makes a Python process look like one of another system, as far as streammiml can tell.

Python imports this file before anything else when its folder is on PYTHONPATH, and processes that
are started from such a one do the same. OTHER_SYSTEM_LACKS lists what is missing: attributes
(``os.preadv``), modules (``fcntl``), and folders (``/proc``). OTHER_SYSTEM_NAME replaces
``sys.platform``.
"""

import importlib
import os
import pathlib
import sys

# Modules of the standard library that look at the system's name when they load, and would then look
# for what is not here.
for name in ("asyncio", "multiprocessing.context", "shutil", "subprocess"):
    importlib.import_module(name)


def hide_folder(folder):
    """Let ``Path.read_text`` find nothing there; ``open`` still does, which Dask needs."""
    real = pathlib.Path.read_text

    def read_text(self, *words, **options):
        if self.is_relative_to(folder):
            raise FileNotFoundError(2, "No such file or directory", str(self))
        return real(self, *words, **options)

    pathlib.Path.read_text = read_text


for lacking in os.environ.get("OTHER_SYSTEM_LACKS", "").split():
    if lacking.startswith("/"):
        hide_folder(lacking)
    elif "." in lacking:
        module, name = lacking.split(".")
        delattr(importlib.import_module(module), name)
    else:
        sys.modules[lacking] = None

if not hasattr(os, "sched_getaffinity") and hasattr(os, "process_cpu_count"):
    # Python 3.13 defines it so on systems that lack the other.
    os.process_cpu_count = os.cpu_count
sys.platform = os.environ.get("OTHER_SYSTEM_NAME", sys.platform)
