"""Draws docs/demo.svg from a short real run over the demo's repository: `make demo`, then `.venv/bin/python docs/make_picture.py`."""

from __future__ import annotations

import io
import random
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from rich.console import Console

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from examples.demo.show import Scene, picture  # noqa: E402
from modelpool.client import Client  # noqa: E402
from modelpool.testing.server import MemoryWatch, serving  # noqa: E402

REQUESTS = 120
BUDGET = "90MB"


def scene_of(client: Client, counts: dict[str, int], measured_bytes: int) -> Scene:
    """What the demo would show at this moment."""
    models: list[dict[str, Any]] = client.models()
    return Scene(
        title=f"modelpool: {len(models)} models, {sum(counts.values())} requests answered",
        device=client.devices()[0],
        sizes={model["name"]: model["size_bytes"] for model in models},
        counts=counts,
        decisions=[one for one in client.decisions(limit=60) if one["kind"] in ("load", "loaded", "evict")],
        measured_bytes=measured_bytes,
    )


def main() -> None:
    """Serve, ask, draw."""
    chance = random.Random(3)
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        arguments = [str(ROOT / ".demo" / "repository"), "--device", f"cpu={BUDGET}"]
        with serving(arguments, Path(folder)) as (url, process), Client(url) as client, MemoryWatch(process) as memory:
            names = sorted(model["name"] for model in client.models() if model["name"].startswith("dense_"))
            for _ in range(REQUESTS):
                name = names[min(len(names) - 1, int(chance.paretovariate(0.8)) - 1)]
                metadata = httpx.get(f"{url}/v2/models/{name}", trust_env=False).json()["inputs"][0]
                client.infer(name, {metadata["name"]: np.ones([max(1, size) for size in metadata["shape"]], np.float32)})
                counts[name] = counts.get(name, 0) + 1
            scene = scene_of(client, counts, memory.now_bytes)
    console = Console(record=True, width=112, file=io.StringIO())
    console.print(picture(scene))
    drawn = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="make demo"), flags=re.DOTALL)  # fonts from elsewhere
    Path(__file__).with_name("demo.svg").write_text(drawn)


if __name__ == "__main__":
    main()
