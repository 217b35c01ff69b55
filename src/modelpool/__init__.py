"""modelpool: serve more machine-learning models than fit in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modelpool.client import Client as Client

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import the client when it is first asked for, so that `import modelpool` stays light."""
    if name == "Client":
        from modelpool.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
