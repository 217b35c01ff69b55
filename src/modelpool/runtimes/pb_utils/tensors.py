"""The tensor that Python models see."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from modelpool.runtimes.pb_utils.errors import TritonModelException
from modelpool.runtimes.pb_utils.types import DataType, datatype_of

_DL_CPU = 1


class Tensor:
    """A named array in host memory.

    array: the NumPy array as given (BF16: raw bits as uint16); datatype: as the Open Inference Protocol spells it. Models use the methods.
    """

    __slots__ = ("_name", "array", "datatype")

    def __init__(self, name: str, numpy_array: ArrayLike) -> None:
        if numpy_array is None:
            raise TritonModelException(f"tensor {name!r} was given None instead of a NumPy array")
        self._name = str(name)
        self.array: NDArray[Any] = np.asarray(numpy_array)
        self.datatype = datatype_of(self.array.dtype)
        if self.datatype == "BF16":
            self.array = self.array.view(np.uint16)

    @classmethod
    def of(cls, name: str, datatype: str, array: NDArray[Any]) -> Tensor:
        """A tensor whose data type is known."""
        tensor = cls.__new__(cls)
        tensor._name, tensor.array, tensor.datatype = name, array, datatype
        return tensor

    def name(self) -> str:
        """Its name in the configuration."""
        return self._name

    def as_numpy(self) -> NDArray[Any]:
        """Its array, which the model may write to: a copy where the bytes belong to the request."""
        if not self.array.flags.writeable:
            self.array = self.array.copy()
        return self.array

    def triton_dtype(self) -> DataType:
        """Triton's number of its data type."""
        return DataType[self.datatype]

    def shape(self) -> list[int]:
        """Its dimensions."""
        return list(self.array.shape)

    def is_cpu(self) -> bool:
        """Always true: tensors are in host memory."""
        return True

    def to_dlpack(self) -> Any:
        """A DLPack capsule over the same memory; raises TritonModelException for BYTES and BF16, which NumPy cannot describe."""
        return self.__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        if self.datatype in ("BYTES", "BF16"):
            raise TritonModelException(f"tensor {self._name!r} is {self.datatype}, which NumPy cannot hand over by DLPack; use as_numpy()")
        return self.as_numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_DL_CPU, 0)

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """A tensor over the memory of a DLPack capsule, or of an object that gives one; only host memory."""
        source = tensor if hasattr(tensor, "__dlpack__") else _Capsule(tensor)
        try:
            return Tensor(name, np.from_dlpack(source))
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise TritonModelException(
                f"tensor {name!r} cannot be taken over by DLPack ({error}); move it to the CPU, to a NumPy type"
            ) from error


class _Capsule:
    """A bare DLPack capsule as the object that NumPy asks for."""

    __slots__ = ("_capsule",)

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_DL_CPU, 0)
