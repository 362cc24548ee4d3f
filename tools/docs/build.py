"""The site from pages, docstrings and examples; a warning or a dead link is an error."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from streammiml.errors import StreammimlError
from streammiml_tools.docs.gallery import run_examples, script_of
from streammiml_tools.docs.links import problems
from streammiml_tools.docs.pages import HERE, ROOT, stage


def build(out: str | Path, work: str | Path = ROOT / "build" / "docs") -> Path:
    """Write the site into ``out``, and return its first page.

    ``work`` keeps what the next build can use again: output of examples, and parsed pages.
    """
    site, work = Path(out).absolute(), Path(work)
    _clear(site)
    source = work / "source"
    stage(source)
    for made in run_examples(work / "examples"):
        (source / "gallery" / made.name).mkdir()
        for path in (*made.glob("*.png"), made / "printed.txt"):
            shutil.copyfile(path, source / "gallery" / made.name / path.name)
        shutil.copyfile(script_of(made.name), source / "gallery" / made.name / f"{made.name}.py")
    _sphinx(source, site, work / "parsed")
    dead = problems(site)
    if dead:
        raise StreammimlError("\n".join((f"the site has {len(dead)} dead links:", *dead)))
    return site / "index.html"


def _clear(site: Path) -> None:
    """Remove an earlier site, whose pages may be gone by now; refuse a folder of anything else."""
    if (site / ".buildinfo").exists():
        shutil.rmtree(site)
    elif site.exists() and any(site.iterdir()):
        raise StreammimlError(f"{site} holds something else than a site; name a new folder")


def _sphinx(source: Path, site: Path, parsed: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "--builder", "html", "--quiet", "--no-color"]
    command += ["--fail-on-warning", "--conf-dir", str(HERE), "--doctree-dir", str(parsed)]
    command += [str(source), str(site)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        problem = done.stderr.replace(f"{source}/", "").strip()
        if "No module named sphinx" in problem:
            problem = "Sphinx is missing: pip install 'streammiml[docs]'"
        raise StreammimlError(f"the site cannot be built:\n{problem}")
