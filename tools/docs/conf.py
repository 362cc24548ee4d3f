"""Settings of Sphinx, which makes the site; nothing in it is loaded from another machine."""

import sys
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

project = "streammiml"
version = release = metadata.version("streammiml")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]

html_theme = "furo"
html_title = f"streammiml {release}"
html_static_path = [str(Path(__file__).parent / "style")]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1a5fb4", "color-brand-content": "#1a5fb4"},
    "dark_css_variables": {"color-brand-primary": "#8ab8f0", "color-brand-content": "#8ab8f0"},
}

myst_heading_anchors = 4
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
copybutton_line_continuation_character = "\\"

smartquotes = False
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
# Docstrings of our modules are wanted, not the large packages that these modules load.
autodoc_mock_imports = [] if find_spec("napkinxc") else ["napkinxc"]
if find_spec("torch") is None:
    names = ["torch", "torch.utils", "torch.utils.data", "torch.utils.data._utils"]
    names.append("torch.utils.data._utils.collate")
    sys.modules.update({name: ModuleType(name) for name in names})
    vars(sys.modules[names[2]]).update(IterableDataset=list, get_worker_info=None)
    vars(sys.modules[names[4]]).update(default_collate_fn_map={})
    import_module("streammiml.torch")
    for name in names:  # SciPy would take them for PyTorch
        del sys.modules[name]
napoleon_google_docstring = False
# Our sections of this name hold plain text; napoleon would look for types in it.
napoleon_custom_sections = ["Returns"]
python_maximum_signature_line_length = 88
python_display_short_literal_types = True


def as_plain_text(
    _app: object, what: str, _name: str, _object: object, _options: object, lines: list[str]
) -> None:
    """Keep napoleon from taking what a setting's text has before a colon for a type."""
    if what == "attribute" and lines:
        lines[0] = f": {lines[0]}"


def setup(app: Any) -> None:
    """Run before napoleon, whose priority is 500."""
    app.connect("autodoc-process-docstring", as_plain_text, priority=400)
