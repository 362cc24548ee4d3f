"""The lowest layer: every folder may import it, and it imports only ``streammiml.errors``."""
