"""Importing a model's code: its folders on the path, its versions apart, nothing written beside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

from modelpool.errors import LoadFailed
from modelpool.protocol.messages import VersionSpec


class _Source(SourceFileLoader):
    """Reads and writes no byte code, so that loading a model does not change its folder (and with it the model's revision)."""

    def path_stats(self, path: str) -> Mapping[str, Any]:
        raise OSError("byte code is not kept beside a model")


class ModelFolder:
    """A model's folder while it is loaded. Close it: it changes the process's import path."""

    def __init__(self, model: str, model_dir: str) -> None:
        self._model = model
        self._root = os.path.abspath(model_dir)
        sys.path_hooks.insert(0, self._finder)
        sys.path.append(self._root)

    def holds(self, path: str | None) -> bool:
        """Whether a file lies in this folder."""
        return path is not None and _within(path, self._root)

    def relative(self, path: str) -> str:
        """A file's path as seen from this folder."""
        return os.path.relpath(path, self._root)

    def import_model(self, version: VersionSpec, filename: str) -> type[Any]:
        """The class TritonPythonModel of a version; raises LoadFailed, or whatever the model's code raises."""
        path = self.model_file(version, filename)
        folder = os.path.dirname(path)
        if not os.path.isfile(path):
            raise LoadFailed(f"model {self._model!r} version {version.version} has no {filename} in its version folder")
        if folder not in sys.path:
            sys.path.append(folder)
        package = ModuleType(str(version.version))
        package.__path__ = [folder]
        sys.modules[package.__name__] = package
        name = f"{package.__name__}.{os.path.splitext(os.path.basename(path))[0]}"
        spec = spec_from_file_location(name, path, loader=_Source(name, path))
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(module)
        found = getattr(module, "TritonPythonModel", None)
        if not isinstance(found, type) or not callable(getattr(found, "execute", None)):
            wrong = "has no class TritonPythonModel" if found is None else "has a TritonPythonModel that is no class with a method execute"
            raise LoadFailed(
                f"{filename} of model {self._model!r} version {version.version} {wrong}; write one with execute(self, requests)"
            )
        return found

    def model_file(self, version: VersionSpec, filename: str) -> str:
        """Where a version's code is; `version.path` may be its folder or the file itself."""
        path = os.path.abspath(version.path)
        return path if os.path.isfile(path) else os.path.join(path, filename)

    def set_apart(self, version: VersionSpec, filename: str) -> None:
        """Forget the helper modules of a version, so that another one imports its own under the same names."""
        folder = os.path.dirname(self.model_file(version, filename))
        own = f"{version.version}."
        _forget([name for name, module in list(sys.modules.items()) if _lies_in(module, folder) and not f"{name}.".startswith(own)], folder)

    def close(self) -> None:
        """Take the folder out of the process's import path and forget its modules."""
        _forget([name for name, module in list(sys.modules.items()) if _lies_in(module, self._root)], self._root)
        if self._finder in sys.path_hooks:
            sys.path_hooks.remove(self._finder)

    def _finder(self, path: str) -> FileFinder:
        if not self.holds(path):
            raise ImportError("not of this model")
        return FileFinder(
            path, (ExtensionFileLoader, EXTENSION_SUFFIXES), (_Source, SOURCE_SUFFIXES), (SourcelessFileLoader, BYTECODE_SUFFIXES)
        )


def _forget(modules: list[str], folder: str) -> None:
    for name in modules:
        sys.modules.pop(name, None)
    sys.path[:] = [entry for entry in sys.path if not _within(entry, folder)]
    for entry in [entry for entry in sys.path_importer_cache if _within(entry, folder)]:
        sys.path_importer_cache.pop(entry, None)


def _lies_in(module: Any, folder: str) -> bool:
    names = getattr(module, "__dict__", {})  # not getattr(module, ..): some modules import others when asked for a name
    file = names.get("__file__")
    if isinstance(file, str):
        return _within(file, folder)
    return any(_within(entry, folder) for entry in names.get("__path__", ()) if isinstance(entry, str))


def _within(path: str, folder: str) -> bool:
    path = os.path.abspath(path)
    return path == folder or path.startswith(folder + os.sep)
