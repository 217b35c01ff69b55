"""What the demo shows while it runs: what is resident, what comes and goes, and how memory stands."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

Json = Mapping[str, Any]

_COLOURS = {"load": "cyan", "loaded": "green", "evict": "yellow", "refuse": "red"}
_SHOWN_DECISIONS = 12
_WIDTH = 110


@dataclass(slots=True)
class Scene:
    """All that one picture shows. sizes: bytes by model; counts: requests answered by model."""

    title: str = ""
    device: Json = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    decisions: Sequence[Json] = ()
    measured_bytes: int = 0


def picture(scene: Scene) -> RenderableType:
    """The scene as rich draws it."""
    budget = max(1, int(scene.device.get("budget_bytes", 1)))
    memory = Table.grid(padding=(0, 1))
    charged = budget - int(scene.device.get("free_bytes", budget))
    for label, used in (("charged", charged), ("measured", scene.measured_bytes)):
        memory.add_row(
            f"{label:9}", ProgressBar(budget, max(0, min(used, budget)), width=60), f"{used / 1e6:6.1f} of {budget / 1e6:.1f} MB"
        )
    residents = Table(box=None, padding=(0, 1), show_edge=False)
    for title in ("resident", "MB", "", "answered"):
        residents.add_column(title, justify="right" if title in ("MB", "answered") else "left")
    names = sorted(scene.device.get("models", ()), key=lambda name: -scene.counts.get(name, 0))
    for name in names:
        size = scene.sizes.get(name, 0)
        residents.add_row(name, f"{size / 1e6:.1f}", ProgressBar(budget, size, width=24), str(scene.counts.get(name, 0)))
    decisions = Text(no_wrap=True, overflow="ellipsis")
    for one in scene.decisions[-_SHOWN_DECISIONS:]:
        decisions.append(f"{one['kind']:>7} ", _COLOURS.get(one["kind"], "white"))
        decisions.append(f"{one['model']:10} ", "bold")
        decisions.append(f"{one['text']}\n", "dim")
    return Panel(Group(memory, Text(), residents, Text(), decisions), title=scene.title, width=_WIDTH)


class Show:
    """A live picture on a terminal; elsewhere a plain line every few seconds."""

    PLAIN_EVERY_S = 5.0

    def __init__(self) -> None:
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._last_line = 0.0
        self.scene = Scene()

    def __enter__(self) -> Show:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, scene: Scene) -> None:
        """Show the scene."""
        self.scene = scene
        if self._live is not None:
            self._live.update(picture(scene), refresh=True)
        elif time.monotonic() >= self._last_line + self.PLAIN_EVERY_S:
            self._last_line = time.monotonic()
            resident = ", ".join(sorted(scene.device.get("models", ())))
            print(f"{scene.title}; {scene.measured_bytes / 1e6:.0f} MB; resident: {resident}", flush=True)

    def save(self, path: str) -> None:
        """Write the last picture as SVG."""
        console = Console(record=True, width=_WIDTH, file=io.StringIO())
        console.print(picture(self.scene))
        console.save_svg(path, title="make demo")
