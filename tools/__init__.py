"""Converts foreign files to stores and makes corpora. Installed as ``streammiml_tools``."""
