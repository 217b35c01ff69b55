"""The Python client of a modelpool server."""

from __future__ import annotations

from modelpool.client.client import Client
from modelpool.client.errors import ConnectionFailed

__all__ = ["Client", "ConnectionFailed"]
