"""Flat requests of one form run together without an array for each of them; what comes out is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelpool.protocol.forms import FormedRequest, Forms
from modelpool.protocol.tensors import FLAT_DTYPES, FlatTensor, InferenceRequest, Tensor
from modelpool.runtimes.base import Alike
from modelpool.testing import models
from tests.unit.runtimes.onnx_models import arrays, fault, loaded, port, request, rows, total

BATCHING: dict[str, Any] = {"max_batch_size": 8, "dynamic_batching": {}}


def flat(**inputs: np.ndarray) -> InferenceRequest:
    names = {np.dtype(dtype): name for name, dtype in FLAT_DTYPES.items()}
    tensors = {name: FlatTensor(name, names[array.dtype], array.shape, array.ravel().tolist()) for name, array in inputs.items()}  # type: ignore[arg-type]
    return InferenceRequest(1, tensors)


@pytest.fixture
def add_sub(tmp_path: Path) -> Path:
    return models.add_sub(tmp_path / "model.onnx")


@pytest.mark.parametrize("values", [[(1,)], [(1,), (2,), (3,)], [(1, 2), (3, 4)]])
def test_the_outcomes_are_those_of_requests_with_arrays(add_sub: Path, values: list[tuple[float, ...]]) -> None:
    with loaded(add_sub, **BATCHING) as model:
        expected = model.execute(1, [request(a=rows(*some), b=rows(*some)) for some in values])
        assert not isinstance(expected, Alike)
        found = model.execute(1, [flat(a=rows(*some), b=rows(*some)) for some in values])
    assert isinstance(found, Alike)
    assert [arrays(one) for one in found] == [arrays(one) for one in expected]
    assert [arrays(one) for one in found[:1]] == [arrays(expected[0])]


def test_without_a_batch_dimension_one_request_is_alike(add_sub: Path) -> None:
    with loaded(add_sub) as model:
        for _ in range(2):  # the first one is looked at by the general way
            (outcome,) = found = model.execute(1, [flat(a=rows(3, 4), b=rows(1, 1))])
    assert isinstance(found, Alike)
    assert arrays(outcome) == {"sum": [[4] * 4, [5] * 4], "difference": [[2] * 4, [3] * 4]}


@pytest.mark.parametrize(
    "other",
    [
        request(a=rows(2), b=rows(2)),
        request("sum", a=rows(2), b=rows(2)),
        flat(a=rows(2, 2), b=rows(2, 2)),
        InferenceRequest(1, {"a": Tensor("FP32", rows(2)), "b": FlatTensor("b", "FP32", (1, 4), [2.0] * 4)}),
    ],
)
def test_requests_of_another_form_are_answered_as_well(add_sub: Path, other: InferenceRequest) -> None:
    with loaded(add_sub, **BATCHING) as model:
        model.execute(1, [flat(a=rows(1), b=rows(1))])
        found = model.execute(1, [flat(a=rows(1), b=rows(1)), other])
    assert not isinstance(found, Alike)
    assert arrays(found[0])["sum"] == [[2] * 4]
    assert arrays(found[1])["sum"][0] == [4] * 4


@pytest.mark.parametrize(
    "wrong",
    [
        flat(a=rows(2)),
        flat(a=rows(2), c=rows(2)),
        flat(a=rows(2), b=rows(2), c=rows(2)),
        flat(a=rows(2), b=rows(2, width=3)),
        flat(a=rows(2), b=rows(2).astype(np.float64)),
        flat(a=rows(2), b=rows(2, 2)),
        flat(a=rows(*range(9)), b=rows(*range(9))),
    ],
)
def test_a_wrong_request_fails_alone(add_sub: Path, wrong: InferenceRequest) -> None:
    right = flat(a=rows(1), b=rows(1))
    with loaded(add_sub, **BATCHING) as model:
        model.execute(1, [right])
        for place, requests in enumerate(([wrong, right], [right, wrong])):
            found = model.execute(1, requests)
            assert fault(found[place]).code == "invalid_tensor"
            assert arrays(found[1 - place])["sum"] == [[2] * 4]
        assert fault(model.execute(1, [wrong])[0]).code == "invalid_tensor"


def test_more_rows_than_fit_are_run_in_turn(add_sub: Path) -> None:
    with loaded(add_sub, **BATCHING) as model:
        model.execute(1, [flat(a=rows(1), b=rows(1))])
        found = model.execute(1, [flat(a=rows(n), b=rows(n)) for n in range(12)])
    assert [arrays(one)["sum"] for one in found] == [[[2 * n] * 4] for n in range(12)]


def test_an_output_without_rows_is_not_taken_apart(tmp_path: Path) -> None:
    ports = {"input": [port("x", "TYPE_FP32", 4)], "output": [port("sum", "TYPE_FP32", 1)]}
    with loaded(total(tmp_path / "model.onnx"), **BATCHING, **ports) as model:
        model.execute(1, [flat(x=rows(1))])
        found = model.execute(1, [flat(x=rows(1)), flat(x=rows(2))])
    assert [arrays(one) for one in found] == [{"sum": 4}, {"sum": 8}]


TWO = b'{"inputs":[{"name":"a","shape":[1,4],"datatype":"FP32","data":[%b]},{"name":"b","shape":[1,4],"datatype":"FP32","data":[%b]}]}'


def formed(forms: Forms, a: bytes, b: bytes = b"1,1,1,1") -> FormedRequest:
    forms.read(TWO % (b"0,0,0,0", b"0,0,0,0"), 1)
    found = forms.read(TWO % (a, b), 1)
    assert found is not None
    return found


def test_requests_of_a_known_layout_are_read_together(add_sub: Path) -> None:
    with loaded(add_sub, **BATCHING) as model:
        some = [formed(model.forms, b"%d,2,3,4" % number) for number in range(3)]
        first = model.execute(1, some)  # looked at by the general way
        again = model.execute(1, some)
    assert not isinstance(first, Alike)
    assert isinstance(again, Alike)
    assert (
        [arrays(one)["sum"] for one in again] == [arrays(one)["sum"] for one in first] == [[[number + 1, 3, 4, 5]] for number in range(3)]
    )


@pytest.mark.parametrize(("wrong", "says"), [(b"1,2,3", "3"), (b"1,2,x,4", "JSON"), (b"1,2,3,1e39", "FP32")])
def test_wrong_numbers_in_a_known_layout_fail_alone(add_sub: Path, wrong: bytes, says: str) -> None:
    with loaded(add_sub, **BATCHING) as model:
        model.execute(1, [flat(a=rows(1), b=rows(1))])
        right, broken, also = model.execute(1, [formed(model.forms, text) for text in (b"1,2,3,4", wrong, b"4,3,2,1")])
    assert says in fault(broken).message
    assert arrays(right)["sum"] == [[2, 3, 4, 5]]
    assert arrays(also)["sum"] == [[5, 4, 3, 2]]


def test_a_known_layout_that_the_model_does_not_take_is_refused(tmp_path: Path) -> None:
    with loaded(models.scale(tmp_path / "model.onnx", 2.0)) as model:
        for _ in range(2):
            (outcome,) = model.execute(1, [formed(model.forms, b"1,2,3,4")])
            assert "unexpected inference input" in fault(outcome).message


def test_more_rows_than_fit_together_are_answered_in_several_runs(add_sub: Path) -> None:
    with loaded(add_sub, max_batch_size=2, dynamic_batching={}) as model:
        model.execute(1, [flat(a=rows(1), b=rows(1))])
        found = model.execute(1, [formed(model.forms, b"%d,0,0,0" % number) for number in range(3)])
    assert [arrays(one)["sum"][0][0] for one in found] == [1, 2, 3]


def test_wrong_numbers_beside_a_request_of_no_known_layout_fail_alone_too(add_sub: Path) -> None:
    with loaded(add_sub, **BATCHING) as model:
        model.execute(1, [flat(a=rows(1), b=rows(1))])
        right, broken = model.execute(1, [flat(a=rows(1), b=rows(1)), formed(model.forms, b"1,2,3")])
    assert arrays(right)["sum"] == [[2] * 4]
    assert "needs 4" in fault(broken).message
