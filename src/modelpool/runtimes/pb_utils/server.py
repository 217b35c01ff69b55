"""What Python models ask of the server: its log, metrics of their own, control of other models."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Any, ClassVar, NoReturn

from modelpool.runtimes.pb_utils.errors import TritonModelException, later


class LogLevel(Enum):
    """How much a line of the log matters."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    VERBOSE = "verbose"


class Logger:
    """Writes lines to the log (standard error); verbose ones are left out unless `verbose` is set."""

    INFO: ClassVar[LogLevel] = LogLevel.INFO
    WARNING: ClassVar[LogLevel] = LogLevel.WARNING
    ERROR: ClassVar[LogLevel] = LogLevel.ERROR
    VERBOSE: ClassVar[LogLevel] = LogLevel.VERBOSE

    source: ClassVar[str] = ""
    verbose: ClassVar[bool] = False

    @classmethod
    def log(cls, message: str, level: LogLevel = LogLevel.INFO) -> None:
        """One line of that level."""
        if level is LogLevel.VERBOSE and not cls.verbose:
            return
        line = str(message).rstrip().replace("\n", "\\n")
        sys.stderr.write(f"{level.value} model={cls.source} {line}\n")
        sys.stderr.flush()

    @classmethod
    def log_info(cls, message: str) -> None:
        """A line for information."""
        cls.log(message, LogLevel.INFO)

    @classmethod
    def log_warn(cls, message: str) -> None:
        """A warning."""
        cls.log(message, LogLevel.WARNING)

    @classmethod
    def log_error(cls, message: str) -> None:
        """An error."""
        cls.log(message, LogLevel.ERROR)

    @classmethod
    def log_verbose(cls, message: str) -> None:
        """A detail."""
        cls.log(message, LogLevel.VERBOSE)


class Metric:
    """One figure of a family. It counts, and nothing shows it yet."""

    __slots__ = ("_kind", "_value")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._value = 0.0

    def increment(self, value: float) -> None:
        """Add to it; a counter only grows."""
        if self._kind == MetricFamily.COUNTER and value < 0:
            raise TritonModelException("a counter cannot fall; use MetricFamily.GAUGE")
        self._value += value

    def set(self, value: float) -> None:
        """Set a gauge."""
        if self._kind != MetricFamily.GAUGE:
            raise TritonModelException(f"a {self._kind} cannot be set; use MetricFamily.GAUGE")
        self._value = float(value)

    def observe(self, value: float) -> None:
        """One more sample of a histogram."""
        if self._kind != MetricFamily.HISTOGRAM:
            raise TritonModelException(f"a {self._kind} takes no samples; use MetricFamily.HISTOGRAM")
        self._value += value

    def value(self) -> float:
        """What it stands at."""
        return self._value


class MetricFamily:
    """Figures of the model's own, so that models which count something run; they are not exported in this version."""

    COUNTER: ClassVar[str] = "counter"
    GAUGE: ClassVar[str] = "gauge"
    HISTOGRAM: ClassVar[str] = "histogram"

    __slots__ = ("_kind", "_name")

    def __init__(self, name: str, description: str, kind: str) -> None:
        self._name = name
        self._kind = kind
        Logger.log_warn(f"metric family {name!r}: metrics of models are counted but not exported in this version of modelpool")

    def Metric(self, labels: dict[str, str] | None = None, **_: Any) -> Metric:
        """One figure with these labels."""
        return Metric(self._kind)


def is_model_ready(model_name: str, model_version: str = "") -> NoReturn:
    """Refused: raises TritonModelException."""
    later(f"calls that control other models (here is_model_ready of {model_name!r}) are")


def load_model(model_name: str, config: str = "", files: dict[str, bytes] | None = None) -> NoReturn:
    """Refused: raises TritonModelException."""
    later(f"calls that control other models (here load_model of {model_name!r}) are")


def unload_model(model_name: str, unload_dependents: bool = False) -> NoReturn:
    """Refused: raises TritonModelException."""
    later(f"calls that control other models (here unload_model of {model_name!r}) are")
