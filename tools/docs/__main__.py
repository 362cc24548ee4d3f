"""Build the site: ``python -m streammiml_tools.docs [OUT]``; the folder is ``site`` by default."""

import cyclopts

from streammiml.errors import StreammimlError
from streammiml_tools.docs.build import build


def main(out: str = "site") -> None:
    """Build the site, and print the address of its first page."""
    try:
        print(build(out).as_uri())
    except StreammimlError as error:
        raise SystemExit(f"streammiml: {error}") from None


if __name__ == "__main__":
    cyclopts.run(main)
