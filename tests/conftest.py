"""Settings for all tests: profiles of Hypothesis. Time limits, warnings and markers are in pyproject.toml."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# A slow machine must not fail a test: pytest's time limit is the only clock.
settings.register_profile("default", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("heavy", settings.get_profile("default"), max_examples=1000)
# What CI judges must not depend on chance: there the examples are the same for the same code. Elsewhere they are new each time.
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default"))
# Servers of tests share a machine: none listens for gRPC on the fixed port but those that a test tells to, on a free one.
os.environ["MODELPOOL_GRPC_PORT"] = "off"
