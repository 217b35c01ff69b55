"""The module `triton_python_backend_utils` on its own."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from modelpool.runtimes import pb_utils


def test_it_is_importable_under_the_names_that_models_use() -> None:
    pb_utils.register("m")
    assert sys.modules["triton_python_backend_utils"] is sys.modules["c_python_backend_utils"] is pb_utils


@pytest.mark.parametrize(
    ("name", "kind", "number"),
    [
        ("TYPE_BOOL", np.bool_, 1),
        ("TYPE_UINT8", np.uint8, 2),
        ("TYPE_INT64", np.int64, 9),
        ("TYPE_FP16", np.float16, 10),
        ("TYPE_FP32", np.float32, 11),
        ("TYPE_FP64", np.float64, 12),
        ("TYPE_STRING", np.object_, 13),
    ],
)
def test_names_of_types(name: str, kind: type, number: int) -> None:
    assert pb_utils.triton_string_to_numpy(name) is kind
    assert pb_utils.numpy_to_triton_type(kind) == number
    assert pb_utils.triton_to_numpy_type(number) is kind


@pytest.mark.parametrize("name", ["TYPE_X", "FP32", ""])
def test_an_unknown_type_name(name: str) -> None:
    with pytest.raises(pb_utils.TritonModelException, match="there is no data type"):
        pb_utils.triton_string_to_numpy(name)


def test_tensor() -> None:
    tensor = pb_utils.Tensor("T", np.array([[1, 2]], np.int32))
    assert (tensor.name(), tensor.shape(), tensor.triton_dtype(), tensor.is_cpu()) == ("T", [1, 2], 8, True)
    assert pb_utils.Tensor("T", np.array(["x"])).triton_dtype() == 13
    assert pb_utils.Tensor("T", np.array(5, np.longlong)).datatype == "INT64"


def test_dlpack_shares_memory() -> None:
    array = np.arange(4, dtype=np.float32)
    tensor = pb_utils.Tensor("T", array)
    for there_and_back in (pb_utils.Tensor.from_dlpack("U", tensor), pb_utils.Tensor.from_dlpack("U", tensor.to_dlpack())):
        assert there_and_back.name() == "U"
        assert np.shares_memory(there_and_back.array, array)


def test_dlpack_refuses_what_numpy_cannot_describe() -> None:
    for array in (np.array([b"x"], dtype=object),):
        with pytest.raises(pb_utils.TritonModelException, match="use as_numpy"):
            pb_utils.Tensor("T", array).to_dlpack()
    with pytest.raises(pb_utils.TritonModelException, match="use as_numpy"):
        pb_utils.Tensor.of("T", "BF16", np.zeros(1, np.uint16)).to_dlpack()
    with pytest.raises(pb_utils.TritonModelException, match="cannot be taken over by DLPack"):
        pb_utils.Tensor.from_dlpack("T", object())


def test_serialised_bytes() -> None:
    items = np.array([b"ab", b"", "é"], dtype=object)
    wire = pb_utils.serialize_byte_tensor(items)
    assert wire is not None
    assert wire.item() == b"\x02\x00\x00\x00ab\x00\x00\x00\x00\x02\x00\x00\x00\xc3\xa9"
    assert pb_utils.deserialize_bytes_tensor(wire.item()).tolist() == [b"ab", b"", "é".encode()]
    assert pb_utils.serialize_byte_tensor(np.array([], dtype=object)) is None
    with pytest.raises(pb_utils.TritonModelException, match="middle of element 1"):
        pb_utils.deserialize_bytes_tensor(wire.item()[:8])


def test_responses_and_errors() -> None:
    error = pb_utils.TritonError("bad", pb_utils.TritonError.NOT_FOUND)
    response = pb_utils.InferenceResponse(error=error)
    assert response.has_error()
    assert (error.message(), error.code(), str(error)) == ("bad", 2, "bad")
    fine = pb_utils.InferenceResponse([pb_utils.Tensor("A", np.zeros(1))])
    assert not fine.has_error()
    assert pb_utils.get_output_tensor_by_name(fine, "A") is fine.output_tensors()[0]
    assert pb_utils.get_output_tensor_by_name(fine, "B") is None


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ([], ", got <class 'list'>"),
        ({1: "x"}, "Expect parameters keys to have type str, found type <class 'int'>"),
        ({"a": 2, "b": 0.5}, "Expect parameters values to have type bool/int/str, found type <class 'float'>"),
        ({"a": None}, "found type <class 'NoneType'>"),
        ({"a": ["b"]}, "found type <class 'list'>"),
        ({"a": np.int64(1)}, "found type <class 'numpy.int64'>"),
        ({"a": 1 << 63}, "no 64 bits"),
    ],
)
def test_parameters_of_a_response_that_triton_refuses_too(parameters: object, told: str) -> None:
    with pytest.raises(pb_utils.TritonModelException, match=told):
        pb_utils.InferenceResponse(parameters=parameters)


def test_configuration_look_ups() -> None:
    config = {"input": [{"name": "A"}], "output": [{"name": "B"}], "model_transaction_policy": {"decoupled": True}}
    assert pb_utils.get_input_config_by_name(config, "A") == {"name": "A"}
    assert pb_utils.get_input_config_by_name(config, "B") is None
    assert pb_utils.get_output_config_by_name(config, "B") == {"name": "B"}
    assert pb_utils.using_decoupled_model_transaction_policy(config)
    assert not pb_utils.using_decoupled_model_transaction_policy({})


def test_model_config_refuses_what_is_incomplete_or_unknown() -> None:
    config = pb_utils.ModelConfig({})
    config.add_output({"name": "O", "data_type": "TYPE_FP32", "dims": []})
    for wrong, message in (
        ({"name": "I", "dims": [1]}, "lacks data_type"),
        ({"name": "I", "data_type": "TYPE_FP32", "dims": [1], "size": 2}, "unknown properties: size"),
    ):
        with pytest.raises(ValueError, match=message):
            config.add_input(wrong)
    with pytest.raises(ValueError, match="only has 'decoupled'"):
        config.set_model_transaction_policy({"other": True})
    config.set_model_transaction_policy({"decoupled": False})
    assert config.as_dict()["model_transaction_policy"] == {"decoupled": False}


def test_the_log_is_one_line_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    pb_utils.register("m")
    pb_utils.Logger.log_info("two\nlines")
    pb_utils.Logger.log_warn("careful")
    pb_utils.Logger.log_verbose("not shown")
    pb_utils.Logger.log("bad", pb_utils.Logger.ERROR)
    assert capsys.readouterr().err == "info model=m two\\nlines\nwarning model=m careful\nerror model=m bad\n"


def test_metrics_count_but_are_not_exported(capsys: pytest.CaptureFixture[str]) -> None:
    counter = pb_utils.MetricFamily("c", "", pb_utils.MetricFamily.COUNTER).Metric(labels={"a": "b"})
    counter.increment(2)
    assert counter.value() == 2
    for call in (lambda: counter.increment(-1), lambda: counter.set(1), lambda: counter.observe(1)):
        with pytest.raises(pb_utils.TritonModelException):
            call()
    assert "not exported" in capsys.readouterr().err


def test_rescheduling_and_other_models_are_refused() -> None:
    request = pb_utils.InferenceRequest(model_name="x")
    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)
    with pytest.raises(pb_utils.TritonModelException, match="iterative sequences"):
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
    for call in (pb_utils.is_model_ready, pb_utils.load_model, pb_utils.unload_model):
        with pytest.raises(pb_utils.TritonModelException, match="other models"):
            call("x")
