"""`python -m modelpool`: the command line."""

from __future__ import annotations

from modelpool.cli import main

if __name__ == "__main__":
    main()
