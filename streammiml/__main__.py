"""``python -m streammiml`` is the same as ``streammiml``."""

from streammiml.verbs.main import main

main()
