"""Makes the runtimes of this folder known to worker processes that are started with it on PYTHONPATH."""

import os
import sys

from modelpool.runtimes import base

base._RUNTIMES["faulty"] = ("faulty_runtime", "FaultyRuntime")
if "TEST_ORDERS" in os.environ:
    base._RUNTIMES["onnx"] = ("obeying_runtime", "ObeyingRuntime")
    if "modelpool.worker" in sys.orig_argv:
        from orders import obey

        obey("worker", "start")
