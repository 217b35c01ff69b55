"""Python models run: answers, batches, errors, and what reaches the model."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelpool.errors import InvalidRequest, InvalidTensor, LoadFailed, ModelError, UnknownVersion
from modelpool.protocol.messages import TensorMeta
from modelpool.runtimes.base import Answer, Tensor, open_runtime
from modelpool.runtimes.python import PythonRuntime
from tests.unit.runtimes.python_models import ADD_SUB, add_sub_config, answer, in_out_config, loaded, port, request, run

F32 = np.float32
ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(r, "IN").as_numpy() for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for array in arrays]
"""


def replying(expression: str) -> str:
    """A model that returns one expression from execute."""
    return f"class TritonPythonModel:\n    def execute(self, requests):\n        return {expression}\n"


def test_the_runtime_is_known_by_its_name() -> None:
    assert isinstance(open_runtime("python"), PythonRuntime)


def test_add_sub(tmp_path: Path) -> None:
    with loaded(tmp_path, ADD_SUB, add_sub_config()) as model:
        assert model.inputs == (TensorMeta("A", "FP32", (4,)), TensorMeta("B", "FP32", (4,)))
        assert (model.max_batch, model.batches, model.slots, model.whole_process) == (0, False, 1, True)
        outputs = answer(run(model, A=np.arange(4, dtype=F32), B=np.ones(4, F32)))
    assert list(outputs) == ["SUM", "DIFFERENCE"]
    np.testing.assert_array_equal(outputs["SUM"], [1, 2, 3, 4])
    np.testing.assert_array_equal(outputs["DIFFERENCE"], [-1, 0, 1, 2])


def test_only_wanted_outputs_are_returned(tmp_path: Path) -> None:
    with loaded(tmp_path, ADD_SUB, add_sub_config()) as model:
        assert list(answer(run(model, wanted=("DIFFERENCE",), A=np.ones(4, F32), B=np.ones(4, F32)))) == ["DIFFERENCE"]


COUNTING = """
class TritonPythonModel:
    def execute(self, requests):
        arrays = [np.full_like(r.inputs()[0].as_numpy(), len(requests)) for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for array in arrays]
"""


@pytest.mark.parametrize(
    ("more", "together"),
    [
        ({"max_batch_size": 4, "dynamic_batching": {}}, [3, 3, 3, 1]),
        ({"max_batch_size": 4}, [1, 1, 1, 1]),
        ({"max_batch_size": 64, "dynamic_batching": {"max_queue_delay_microseconds": "1500"}}, [4, 4, 4, 4]),
    ],
)
def test_requests_run_together_as_far_as_the_model_batches(tmp_path: Path, more: dict[str, Any], together: list[int]) -> None:
    requests = [request(IN=np.zeros((rows, 2), F32)) for rows in (1, 2, 1, 3)]
    with loaded(tmp_path, COUNTING, in_out_config("TYPE_FP32", 2, **more)) as model:
        outcomes = model.execute(1, requests)
        assert model.inputs[0].shape == (-1, 2)
        assert model.max_delay_s == (0.0015 if more["max_batch_size"] == 64 else 0)
    assert [answer(outcome)["OUT"].shape[0] for outcome in outcomes] == [1, 2, 1, 3]
    assert [int(answer(outcome)["OUT"].max()) for outcome in outcomes] == together


def test_a_bad_request_leaves_the_others_of_its_run_alone(tmp_path: Path) -> None:
    with loaded(tmp_path, COUNTING, in_out_config("TYPE_FP32", 2, max_batch_size=8, dynamic_batching={})) as model:
        good, bad, also_good = model.execute(1, [request(IN=np.zeros((1, n), F32)) for n in (2, 3, 2)])
    assert isinstance(bad, InvalidTensor)
    assert answer(good)["OUT"].tolist() == answer(also_good)["OUT"].tolist() == [[2, 2]]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"A": np.ones((1, 4), F32)}, r"lacks the required input\(s\) \['B'\]"),
        ({"A": np.ones((1, 4), F32), "B": np.ones((1, 4), F32), "C": np.ones(4, F32)}, "unexpected input 'C' for model 'm'"),
        ({"A": np.ones((1, 4), np.int64), "B": np.ones((1, 4), F32)}, "data type of input 'A' is INT64, but model 'm' expects FP32"),
        (
            {"A": np.ones((1, 5), F32), "B": np.ones((1, 4), F32)},
            r"unexpected shape for input 'A' of model 'm': expected \[-1,4\], got \[1,5\]",
        ),
        ({"A": np.ones(4, F32), "B": np.ones((1, 4), F32)}, "the first dimension is the batch"),
        ({"A": np.ones((9, 4), F32), "B": np.ones((9, 4), F32)}, "from 1 to 8 for model 'm', got 9"),
        ({"A": np.ones((0, 4), F32), "B": np.ones((0, 4), F32)}, "from 1 to 8"),
        ({"A": np.ones((1, 4), F32), "B": np.ones((2, 4), F32)}, "batch size of input 'B' of model 'm' is 2, that of other inputs 1"),
        ({"A": np.ones((1, 4), F32), "B": np.ones((1, 4), F32), "wanted": ("X",)}, "unexpected output 'X'"),
    ],
)
def test_inputs_are_checked(tmp_path: Path, inputs: dict[str, Any], message: str) -> None:
    with loaded(tmp_path, ADD_SUB, add_sub_config(max_batch_size=8)) as model:
        outcome = run(model, **inputs)
    assert isinstance(outcome, InvalidTensor)
    assert re.search(message, outcome.message)


def test_an_optional_input_may_be_left_out(tmp_path: Path) -> None:
    code = replying('[pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.float32([len(r.inputs())]))]) for r in requests]')
    config = {"input": [port("A"), port("B", optional=True)], "output": [port("OUT")]}
    with loaded(tmp_path, code, config) as model:
        assert answer(run(model, A=np.ones(4, F32)))["OUT"].tolist() == [1]


def test_reshape_of_inputs_and_outputs(tmp_path: Path) -> None:
    code = replying('[pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy().reshape(1, 6))]) for r in requests]')
    config = {
        "max_batch_size": 2,
        "input": [port("IN", "TYPE_FP32", 6, reshape={"shape": ["2", "3"]})],
        "output": [port("OUT", "TYPE_FP32", 3, 2, reshape={"shape": ["6"]})],
    }
    with loaded(tmp_path, code.replace("return", "assert requests[0].inputs()[0].shape() == [1, 2, 3]; return"), config) as model:
        assert answer(run(model, IN=np.arange(6, dtype=F32).reshape(1, 6)))["OUT"].tolist() == [[[0, 1], [2, 3], [4, 5]]]


def test_strings(tmp_path: Path) -> None:
    code = replying(
        '[pb_utils.InferenceResponse([pb_utils.Tensor("OUT", '
        "np.array([x.decode().upper() for x in r.inputs()[0].as_numpy()], dtype=object))]) for r in requests]"
    )
    with loaded(tmp_path, code, in_out_config("TYPE_STRING")) as model:
        assert model.outputs[0].datatype == "BYTES"
        assert answer(run(model, IN=np.array(["é".encode(), b"", b"ab"], dtype=object)))["OUT"].tolist() == ["É".encode(), b"", b"AB"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ('np.array([b"a", "\\u00e9", 7, 1.5], dtype=object)', [b"a", "é".encode(), b"7", b"1.5"]),
        ('np.array(["x", "yz"])', [b"x", b"yz"]),
        ('np.array([b"x", b"yz"])', [b"x", b"yz"]),
        ("np.array([], dtype=object)", []),
    ],
)
def test_what_counts_as_bytes(tmp_path: Path, values: str, expected: list[bytes]) -> None:
    with loaded(
        tmp_path, replying(f'[pb_utils.InferenceResponse([pb_utils.Tensor("OUT", {values})])]'), in_out_config("TYPE_STRING")
    ) as model:
        assert answer(run(model, IN=np.array([], dtype=object)))["OUT"].tolist() == expected


@pytest.mark.parametrize(
    ("data_type", "datatype", "array"),
    [
        ("TYPE_FP16", "FP16", np.array([1.5, -2], np.float16)),
        ("TYPE_BF16", "BF16", np.array([0x3F80, 0xC000], np.uint16)),
        ("TYPE_BOOL", "BOOL", np.array([True, False])),
        ("TYPE_UINT64", "UINT64", np.array([2**64 - 1], np.uint64)),
        ("TYPE_INT8", "INT8", np.array([], np.int8)),
    ],
)
def test_data_types_pass_through(tmp_path: Path, data_type: str, datatype: str, array: Any) -> None:
    with loaded(tmp_path, ECHO, in_out_config(data_type)) as model:
        outcome = run(model, IN=Tensor(datatype, array))
        assert answer(outcome)["OUT"].dtype == array.dtype
        np.testing.assert_array_equal(answer(outcome)["OUT"], array)
        assert isinstance(outcome, dict)
        assert outcome["OUT"].datatype == datatype


def test_a_model_may_write_to_its_inputs_and_reuse_its_outputs(tmp_path: Path) -> None:
    code = """
    class TritonPythonModel:
        def initialize(self, args):
            self.buffer = np.zeros(2, np.float32)

        def execute(self, requests):
            array = requests[0].inputs()[0].as_numpy()
            array *= 2
            self.buffer[:] = array
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.buffer)])]
    """
    given = np.frombuffer(np.float32([1, 2]).tobytes(), F32)
    with loaded(tmp_path, code, in_out_config()) as model:
        first, second = model.execute(1, [request(IN=given), request(IN=given * 10)])
    assert answer(first)["OUT"].tolist() == [2, 4]
    assert answer(second)["OUT"].tolist() == [20, 40]
    assert given.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ("None", "returned None instead of a list"),
        ("7", "returned a value of type int"),
        ("[]", r"returned 0 response\(s\) for 1 request\(s\)"),
        ("[None]", "gave None where an InferenceResponse belongs; decoupled answers"),
        ('["x"]', "gave a value of type str where"),
        ("[pb_utils.InferenceResponse()]", r"lacks output\(s\) \['OUT'\]"),
        ('[pb_utils.InferenceResponse([pb_utils.Tensor("UOT", np.float32([1]))])]', r"lacks output\(s\) \['OUT'\]; it holds \['UOT'\]"),
        (
            '[pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([b"x"], object))])]',
            "is BYTES but its configuration says TYPE_FP32",
        ),
        ('[pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.float64([1e300]))])]', "is FP64 but its configuration says TYPE_FP32"),
        ('[pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.complex64([1]))])]', "complex64 has no counterpart"),
        ('[pb_utils.InferenceResponse([pb_utils.Tensor("OUT", None)])]', "'OUT' was given None"),
        ("[pb_utils.InferenceResponse([np.zeros(1)])]", "wrap each output in pb_utils.Tensor"),
        ('[pb_utils.InferenceResponse(error="no")]', "must be a TritonError, not str"),
        ('[pb_utils.InferenceResponse(error=pb_utils.TritonError("sorry"))]', "^sorry$"),
        ("1 / 0", r"raised ZeroDivisionError: division by zero \(1/model.py:\d+ in execute\)$"),
        ('(_ for _ in ()).throw(pb_utils.TritonModelException("mine"))', "TritonModelException: mine"),
        ("__import__('sys').exit(3)", r"SystemExit: it called sys.exit\(3\), which a model must not"),
        ("pb_utils.InferenceRequest(model_name='other').exec()", r"calls from one model to another \(BLS\) need a server"),
        ("pb_utils.InferenceRequest().exec()", "needs its name"),
        ("requests[0].get_response_sender()", "decoupled answers come with a later version"),
        ("pb_utils.load_model('other')", "load_model of 'other'.* not in this version"),
    ],
)
def test_faults_of_the_model_become_its_errors(tmp_path: Path, reply: str, message: str) -> None:
    with loaded(tmp_path, replying(reply), in_out_config()) as model:
        for _ in range(2):  # and it goes on serving
            outcome = run(model, IN=np.zeros(1, F32))
            assert isinstance(outcome, ModelError)
            assert re.search(message, outcome.message)


def test_an_element_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    code = replying('[pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([b"a", None], dtype=object))])]')
    with loaded(tmp_path, code, in_out_config("TYPE_STRING")) as model:
        outcome = run(model, IN=np.array([b""], dtype=object))
    assert isinstance(outcome, ModelError)
    assert "NoneType; give bytes or str" in outcome.message


def test_an_exception_fails_all_of_its_call_and_no_other(tmp_path: Path) -> None:
    code = """
    class TritonPythonModel:
        def execute(self, requests):
            if any(r.inputs()[0].as_numpy().min() < 0 for r in requests):
                raise ValueError("negative")
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
    """
    with loaded(tmp_path, code, in_out_config("TYPE_FP32", 1, max_batch_size=2, dynamic_batching={})) as model:
        outcomes = model.execute(1, [request(IN=F32([[n]])) for n in (1, -1, 3, 4)])
    assert [type(outcome) for outcome in outcomes] == [ModelError, ModelError, dict, dict]
    assert outcomes[0] is not outcomes[1]


def test_an_error_about_the_argument_is_the_clients(tmp_path: Path) -> None:
    code = replying('[pb_utils.InferenceResponse(error=pb_utils.TritonError("too long", pb_utils.TritonError.INVALID_ARG))]')
    with loaded(tmp_path, code, in_out_config()) as model:
        outcome = run(model, IN=np.zeros(1, F32))
    assert isinstance(outcome, InvalidRequest)
    assert outcome.message == "too long"


@pytest.mark.parametrize("values", ["np.float64([1.5])", "np.float16([1.5])", "[1.5]"])
def test_an_output_is_cast_where_no_value_is_lost(tmp_path: Path, values: str) -> None:
    with loaded(tmp_path, replying(f'[pb_utils.InferenceResponse([pb_utils.Tensor("OUT", {values})])]'), in_out_config()) as model:
        array = answer(run(model, IN=np.zeros(1, F32)))["OUT"]
    assert array.dtype == F32
    assert array.tolist() == [1.5]


@pytest.mark.parametrize(("value", "fits"), [(7, True), (2**40, False)])
def test_integers_are_cast_where_they_fit(tmp_path: Path, value: int, fits: bool) -> None:
    code = replying(f'[pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.int64([{value}]))])]')
    with loaded(tmp_path, code, in_out_config("TYPE_INT32")) as model:
        assert isinstance(run(model, IN=np.zeros(1, np.int32)), dict) is fits


def test_an_undeclared_output_is_left_out_with_one_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = replying('[pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.float32([1])), pb_utils.Tensor("DEBUG", np.float32([1]))])]')
    with loaded(tmp_path, code, in_out_config()) as model:
        for _ in range(2):
            assert list(answer(run(model, IN=np.zeros(1, F32)))) == ["OUT"]
    assert capsys.readouterr().err.count("model=m output 'DEBUG' is left out") == 1


def test_what_a_request_tells_the_model(tmp_path: Path) -> None:
    code = """
    class TritonPythonModel:
        def execute(self, requests):
            r = requests[0]
            seen = [r.request_id(), r.correlation_id(), r.requested_output_names(), r.model_name(), r.model_version(),
                    json.loads(r.parameters()), r.flags(), r.timeout(), r.priority(), r.is_cancelled()]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([json.dumps(seen)], dtype=object))])]
    """
    parameters = {"sequence_id": 7, "sequence_start": True, "timeout": 50, "priority": 2, "mine": "x"}
    with loaded(tmp_path, code, in_out_config("TYPE_STRING")) as model:
        outcome = run(model, ident="id", parameters=parameters, IN=np.array([b""], dtype=object))
        wrong = run(model, parameters={"timeout": "soon"}, IN=np.array([b""], dtype=object))
    assert answer(outcome)["OUT"].tolist() == [b'["id", 7, ["OUT"], "m", 1, {"mine": "x"}, 1, 50, 2, false]']
    assert isinstance(wrong, InvalidRequest)


def test_what_a_response_tells_the_client_beside_its_tensors(tmp_path: Path) -> None:
    code = """
    class TritonPythonModel:
        def execute(self, requests):
            tensors = [pb_utils.Tensor("OUT", np.float32([1]))]
            told = [{"tokens": 3, "cut": True, "finish": "stop"}, {}, None]
            return [pb_utils.InferenceResponse(tensors, parameters=one) for one, _ in zip(told, requests)]
    """
    config = in_out_config(max_batch_size=3, dynamic_batching={}, output=[port("OUT", "TYPE_FP32")])
    with loaded(tmp_path, code, config) as model:
        first, *others = model.execute(1, [request(IN=np.zeros((1, 1), F32)) for _ in range(3)])
    assert isinstance(first, Answer)
    assert first.parameters == {"tokens": 3, "cut": True, "finish": "stop"}
    assert list(first) == ["OUT"]
    assert [type(outcome) for outcome in others] == [dict, dict]


def test_execute_may_be_a_coroutine(tmp_path: Path) -> None:
    code = """
    import asyncio

    class TritonPythonModel:
        async def execute(self, requests):
            await asyncio.sleep(0)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
    """
    with loaded(tmp_path, code, in_out_config()) as model:
        for number in (1, 2):
            assert answer(run(model, IN=F32([number])))["OUT"].tolist() == [number]


def test_a_slot_runs_all_of_its_code_on_one_thread(tmp_path: Path) -> None:
    code = """
    import threading

    class TritonPythonModel:
        def initialize(self, args):
            self.made_on = threading.get_ident()

        def execute(self, requests):
            assert threading.get_ident() == self.made_on
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.float32([1]))])]
    """
    outcomes: list[Any] = []
    with loaded(tmp_path, code, in_out_config()) as model:
        threads = [threading.Thread(target=lambda: outcomes.append(run(model, IN=np.zeros(1, F32)))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [type(outcome) for outcome in outcomes] == [dict] * 4


def test_slots_run_at_once(tmp_path: Path) -> None:
    code = """
    import threading
    met = threading.Barrier(3, timeout=30)

    class TritonPythonModel:
        def initialize(self, args):
            self.name = args["model_instance_name"]

        def execute(self, requests):
            met.wait()
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([self.name], dtype=object))])]
    """
    config = in_out_config("TYPE_STRING", instance_group=[{"count": 2}, {"name": "extra"}])
    outcomes: list[Any] = []
    with loaded(tmp_path, code, config) as model:
        assert model.slots == 3
        threads = [threading.Thread(target=lambda: outcomes.append(run(model, IN=np.array([b""], dtype=object)))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(answer(outcome)["OUT"][0] for outcome in outcomes) == [b"extra_0", b"m_0_0", b"m_0_1"]


def test_a_version_that_is_not_loaded(tmp_path: Path) -> None:
    with loaded(tmp_path, ECHO, in_out_config()) as model, pytest.raises(UnknownVersion, match=r"version 3 .* loaded are \[1\]"):
        model.execute(3, [request(IN=np.zeros(1, F32))])


EVIL = "class Evil(Exception):\n    def __str__(self): raise self\n    __repr__ = __str__\n"


def test_an_exception_that_cannot_be_read_is_told_of_all_the_same(tmp_path: Path) -> None:
    with loaded(tmp_path / "execute", EVIL + replying("(_ for _ in ()).throw(Evil())"), in_out_config()) as model:
        for _ in range(2):
            outcome = run(model, IN=np.zeros(1, F32))
            assert isinstance(outcome, ModelError)
            assert "Evil: (its message cannot be read)" in outcome.message
    with (
        pytest.raises(LoadFailed, match="Evil"),
        loaded(
            tmp_path / "initialize",
            EVIL + "class TritonPythonModel:\n    def initialize(self, args): raise Evil()\n    def execute(self, requests): pass\n",
            in_out_config(),
        ),
    ):
        pass


def test_a_models_words_are_cut_to_a_length(tmp_path: Path) -> None:
    with loaded(tmp_path, replying("(_ for _ in ()).throw(ValueError('x' * 5_000_000))"), in_out_config()) as model:
        outcome = run(model, IN=np.zeros(1, F32))
    assert isinstance(outcome, ModelError)
    assert len(outcome.message) < 10_000
    assert "5000000 characters in all" in outcome.message
