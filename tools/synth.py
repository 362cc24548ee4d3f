"""``python -m streammiml_tools.synth``: the command of ``corpora/synth.py``."""

import sys

from streammiml_tools.command import run_command
from streammiml_tools.corpora.synth import synth

if __name__ == "__main__":
    sys.exit(run_command(synth))
