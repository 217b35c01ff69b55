"""`python -m examples.demo`."""

from __future__ import annotations

import sys

from examples.demo.run import main

sys.exit(main())
