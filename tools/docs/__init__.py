"""The site: pages of the guide, the reference of the library, and a gallery."""
