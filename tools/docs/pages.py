"""Pages of the project as sources of the site, in one folder, with links between them."""

from __future__ import annotations

import re
import shutil
from dataclasses import fields
from pathlib import Path

from streammiml.config import TrainConfig
from streammiml.tell.guide import PAGES
from streammiml_tools.docs.gallery import EXAMPLES

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).resolve().parent
API = ("stores", "training", "answers", "estimator", "rivals", "loader", "settings", "torch")
"""Pages of the reference of the library, in the order of a user's week."""
INTERNALS = ("contributing", "changelog", "architecture", "security", "weaknesses")

_LINK = re.compile(r"(!?\[[^]]*\]\()([^)#\s]+)(#[^)]*)?\)")
_SAYS_GUIDE = re.compile(r"`streammiml guide (\w+)`")


def sources() -> dict[str, Path]:
    """Return the file behind each page that is shown as it is: name in the site to file."""
    pages = {f"guide/{topic}.md": ROOT / "streammiml" / path for topic, path in PAGES.items()}
    pages |= {"index.md": ROOT / "README.md", "guide/changelog.md": ROOT / "CHANGELOG.md"}
    pages["guide/contributing.md"] = ROOT / ".github" / "CONTRIBUTING.md"
    pages["guide/weaknesses.md"] = ROOT / ".github" / "SECURITY.md"
    pages |= {f"api/{name}.md": HERE / "api" / f"{name}.md" for name in ("index", *API)}
    names = ("index", *EXAMPLES)
    return pages | {f"gallery/{name}.md": HERE / "gallery" / f"{name}.md" for name in names}


def stage(folder: Path) -> None:
    """Write the sources of the site into a folder that is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = sources()
    names = {path: name for name, path in pages.items()}
    for name, path in pages.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        text = relinked(path.read_text(encoding="utf-8"), path, name, names, folder)
        text += _settings() if name == "api/settings.md" else _hidden_menu(name)
        target.write_text(text, encoding="utf-8")


def relinked(text: str, path: Path, name: str, names: dict[Path, str], folder: Path) -> str:
    """Return a page whose links lead to pages of the site, and to copies of other files."""
    up = "../" * name.count("/")

    def link(match: re.Match[str]) -> str:
        opening, address, anchor = match[1], match[2], match[3] or ""
        if "://" in address:
            return match[0]
        file = (path.parent / address).resolve()
        if file.is_dir() or not file.exists():
            # A folder of pages is the menu; what does not exist is left for Sphinx to report.
            return match[0] if not file.exists() else f"{opening}{up}index.md)"
        if file in names:
            return f"{opening}{up}{names[file]}{anchor})"
        copy = folder / "files" / file.name.lstrip(".")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
        return f"{opening}{up}files/{copy.name})"

    def page_of_guide(match: re.Match[str]) -> str:
        return f"[{match[1]}]({up}guide/{match[1]}.md)" if match[1] in PAGES else match[0]

    # Commands in blocks of code stay as they are typed.
    parts = re.split(r"(^```.*?^```$)", text, flags=re.S | re.M)
    for number in range(0, len(parts), 2):
        parts[number] = _SAYS_GUIDE.sub(page_of_guide, _LINK.sub(link, parts[number]))
    return "".join(parts)


def _settings() -> str:
    """Return the reference of every setting of training, in the order of the source."""
    entries = "".join(
        f".. autoattribute:: streammiml.TrainConfig.{setting.name}\n"
        f"   :annotation: : {setting.type} = {setting.default!r}\n\n"
        for setting in fields(TrainConfig)
    )
    return f"\n```{{eval-rst}}\n{entries}```\n"


def _hidden_menu(name: str) -> str:
    """Return the part of the menu that hangs below a page, in the notation of MyST."""
    guide = [topic for topic in PAGES if topic not in INTERNALS]
    menus = {
        "index.md": [
            ("Guide", [f"guide/{topic}" for topic in guide]),
            ("Examples", ["gallery/index"]),
            ("Library", ["api/index"]),
            ("The project", [f"guide/{topic}" for topic in INTERNALS]),
        ],
        "api/index.md": [("", list(API))],
        "gallery/index.md": [("", list(EXAMPLES))],
    }
    return "".join(
        "\n```{toctree}\n:hidden:\n"
        + (f":caption: {caption}\n\n" if caption else "\n")
        + "\n".join(entries)
        + "\n```\n"
        for caption, entries in menus.get(name, [])
    )
