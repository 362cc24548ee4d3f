"""The command itself: help that loads nothing heavy, and shells that complete."""

import json
import shutil
import subprocess
import sys

import pytest

HEAVY = {"numpy", "numba", "zarr", "dask", "distributed", "pyarrow", "sklearn", "jinja2", "h5py"}
HEAVY |= {"matplotlib", "scipy", "safetensors"}


COMPLETION = [sys.executable, "-m", "streammiml", "--install-completion"]


def modules_after(code):
    """What is loaded once a program has run."""
    last = "import json, sys; print(); print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{last}"], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "code",
    [
        "import streammiml",
        "from streammiml.verbs.main import run; run(['--help'])",
        "from streammiml.verbs.main import run; run(['--version'])",
        "from streammiml.verbs.main import run; run(['trian'])",
    ],
)
def test_command__help_and_import_load_nothing_heavy(code):
    loaded = modules_after(code)
    ours = [name for name in loaded if name.startswith("streammiml")]
    assert not HEAVY & {name.split(".")[0] for name in loaded}
    # Each module costs about half a millisecond; there is no room for another library.
    assert len(loaded) < 500
    assert len(ours) <= 6


def test_command__saying_what_is_in_a_store_loads_no_compiler():
    loaded = modules_after("from streammiml.verbs.main import run; run(['info', '--help'])")
    assert not {"numba", "sklearn", "matplotlib", "jinja2"} & {n.split(".")[0] for n in loaded}


def complete(script, *words):
    """What bash offers for the last of these words."""
    quoted = " ".join(f"'{word}'" for word in words)
    program = f"""
    source {script}
    COMP_WORDS=({quoted})
    COMP_CWORD={len(words) - 1}
    {{ _streammiml; }} 2> /dev/null
    printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_command__bash_completes_verbs_and_options(tmp_path):
    script = tmp_path / "streammiml.bash"
    done = subprocess.run(
        [*COMPLETION, "--shell", "bash", "--output", str(script)],
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert str(script) in done.stdout
    assert complete(script, "streammiml", "tr") == {"train"}
    assert "report" in complete(script, "streammiml", "")
    assert {"--epochs", "--extend"} == complete(script, "streammiml", "train", "--e")
    assert "--image" in complete(script, "streammiml", "report", "--im")


def test_command__a_shell_that_is_not_known_is_one_line(tmp_path):
    done = subprocess.run(
        COMPLETION,
        env={"HOME": str(tmp_path), "PATH": "/nowhere", "SHELL": "/bin/unheard-of"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(
        "streammiml: which shell this is cannot be told; give --shell bash"
    )
    assert "\n" not in done.stderr.strip()
