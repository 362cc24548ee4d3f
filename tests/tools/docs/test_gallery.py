"""Examples of the gallery run when they have changed, and not otherwise."""

import pytest

from streammiml.errors import StreammimlError
from streammiml_tools.docs import gallery
from streammiml_tools.docs.pages import HERE

SCRIPT = """
import pathlib, sys
out = pathlib.Path(sys.argv[1])
print(WORD)
(out / "x.png").write_bytes(b"")
"""


@pytest.fixture
def example(tmp_path, monkeypatch):
    script = tmp_path / "x.py"
    monkeypatch.setattr(gallery, "EXAMPLES", ("x",))
    monkeypatch.setattr(gallery, "script_of", lambda name: tmp_path / f"{name}.py")
    script.write_text(SCRIPT.replace("WORD", "'once'"))
    return script


def test_run_examples__keeps_what_is_printed_and_drawn_until_the_script_changes(example, tmp_path):
    [out] = gallery.run_examples(tmp_path / "made")
    assert (out / "printed.txt").read_text() == "once\n"
    (out / "printed.txt").write_text("kept")
    gallery.run_examples(tmp_path / "made")
    assert (out / "printed.txt").read_text() == "kept"
    example.write_text(SCRIPT.replace("WORD", "'again'"))
    gallery.run_examples(tmp_path / "made")
    assert (out / "printed.txt").read_text() == "again\n"


def test_run_examples__one_that_fails_is_named_and_tried_again(example, tmp_path):
    example.write_text("raise ValueError('no such slide')")
    for _ in range(2):
        with pytest.raises(StreammimlError, match=r"the example x failed:[^§]*no such slide"):
            gallery.run_examples(tmp_path / "made")


def test_gallery__has_a_page_for_each_example_with_its_code_output_and_picture():
    for name in gallery.EXAMPLES:
        text = (HERE / "gallery" / f"{name}.md").read_text()
        assert f"```{{literalinclude}} {name}/{name}.py" in text
        assert f"```{{literalinclude}} {name}/printed.txt" in text
        assert f"({name}/{name}.png)" in text
        assert f"({name}.md)" in (HERE / "gallery" / "index.md").read_text()
