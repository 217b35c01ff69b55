from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from modelpool.testing import models


def run(path: Path, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_dense_has_the_wanted_size(tmp_path: Path, layers: int) -> None:
    path = models.dense(tmp_path / "m.onnx", weight_bytes=2_000_000, layers=layers)
    assert path.stat().st_size == pytest.approx(2_000_000, rel=0.02)
    width = models.dense_width(2_000_000, layers)
    answer = run(path, x=np.ones((3, width), np.float32))["y"]
    assert answer.shape == (3, width)
    assert np.abs(answer).max() <= 1


def test_dense_weights_follow_the_seed(tmp_path: Path) -> None:
    one, again, other = (models.dense(tmp_path / f"{i}" / "m.onnx", weight_bytes=10_000, seed=seed) for i, seed in enumerate((1, 1, 2)))
    assert one.read_bytes() == again.read_bytes()
    assert one.read_bytes() != other.read_bytes()


@pytest.mark.parametrize(("batching", "shape"), [(True, (2, 4)), (False, (4,))])
def test_add_sub(tmp_path: Path, batching: bool, shape: tuple[int, ...]) -> None:
    path = models.add_sub(tmp_path / "m.onnx", batching=batching)
    answer = run(path, a=np.full(shape, 5, np.float32), b=np.full(shape, 2, np.float32))
    assert (answer["sum"] == 7).all()
    assert (answer["difference"] == 3).all()


def test_scale(tmp_path: Path) -> None:
    assert run(models.scale(tmp_path / "m.onnx", 2.5), x=np.array([2, 4], np.float32))["y"].tolist() == [5, 10]


@pytest.mark.parametrize(
    ("tensor_type", "values"),
    [
        (onnx.TensorProto.INT64, np.array([1, -2], np.int64)),
        (onnx.TensorProto.BOOL, np.array([True, False])),
        (onnx.TensorProto.FLOAT16, np.array([1.5], np.float16)),
        (onnx.TensorProto.STRING, np.array(["a", "ä"], object)),
    ],
)
def test_identity(tmp_path: Path, tensor_type: int, values: np.ndarray) -> None:
    assert run(models.identity(tmp_path / "m.onnx", tensor_type), x=values)["y"].tolist() == values.tolist()


def test_busy_runs_the_rounds_it_is_told(tmp_path: Path) -> None:
    path = models.busy(tmp_path / "m.onnx", width=8)
    start = np.ones(8, np.float32)
    once = run(path, x=start, rounds=np.array(1))["y"]
    assert run(path, x=start, rounds=np.array(0))["y"].tolist() == start.tolist()
    assert np.allclose(run(path, x=once, rounds=np.array(1))["y"], run(path, x=start, rounds=np.array(2))["y"])


def test_texts_are_written_without_their_indent(tmp_path: Path) -> None:
    config = models.write_config(tmp_path / "m", '\n    name: "m"\n    max_batch_size: 4\n')
    assert config.read_text() == 'name: "m"\nmax_batch_size: 4\n'
    source = models.python_model(tmp_path / "m", "\n    class TritonPythonModel:\n        pass\n", version=2)
    assert source == tmp_path / "m" / "2" / "model.py"
    assert source.read_text().lstrip().startswith("class TritonPythonModel:\n    pass")
