"""Conversion and corpora: foreign files to stores. Installed as ``streammiml_tools``."""
