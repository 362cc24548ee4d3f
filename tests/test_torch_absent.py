"""Without PyTorch: one line that says what to install."""

import subprocess
import sys


def test_import__without_torch_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None; import streammiml.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = done.stderr.rstrip().splitlines()[-1]
    wanted = "streammiml.torch needs torch: pip install 'streammiml[torch]'"
    assert last == f"streammiml.errors.StreammimlError: {wanted}"
    assert "During handling" not in done.stderr
