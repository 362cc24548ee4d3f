"""``python -m streammiml_tools.reuters``: the command of ``corpora/reuters.py``."""

import sys

from streammiml_tools.command import run_command
from streammiml_tools.corpora.reuters import reuters

if __name__ == "__main__":
    sys.exit(run_command(reuters))
