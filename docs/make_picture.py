"""Draws docs/demo.svg from a run of the demo: `.venv/bin/python docs/make_picture.py` (it takes as long as `make demo`)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent


def main() -> int:
    """Run the demo and keep its last picture, without the fonts that it would fetch from elsewhere."""
    paths = os.pathsep.join(filter(None, (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder) / "demo.svg"
        command = [sys.executable, "-m", "examples.demo", "--picture", str(drawn)]
        code = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}).returncode
        if code == 0:
            text = re.sub(r"@font-face \{.*?\}", "", drawn.read_text(), flags=re.DOTALL)
            (DOCS / "demo.svg").write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
