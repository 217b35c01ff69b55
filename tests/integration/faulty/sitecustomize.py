"""Makes the runtime `faulty` known to worker processes that are started with this folder on PYTHONPATH."""

from modelpool.runtimes import base

base._RUNTIMES["faulty"] = ("faulty_runtime", "FaultyRuntime")
