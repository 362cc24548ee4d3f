"""``python -m streammiml_tools.mnist``: the command of ``corpora/mnist.py``."""

import sys

from streammiml_tools.command import run_command
from streammiml_tools.corpora.mnist import mnist

if __name__ == "__main__":
    sys.exit(run_command(mnist))
