"""The `marqo` client, unmodified, with the names that Marqo's models have, beside models of the other protocol."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from modelpool.testing.models import scale
from tests.integration.serving import RunningServer, ask, serving

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it is written for an older pydantic
    import marqo
    from marqo.errors import MarqoWebError

NAMES = [  # the client writes names into the query as they are: & # and ? cannot be in them
    "hf/e5-base-v2",
    "open_clip/ViT-B-32/laion2b_s34b_b79k",
    "hf/e5",
    "two words",
    "a+b",
    "a|b",
    "größe/模型",
    "100%",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder: Path = tmp_path_factory.mktemp("marqo")
    scale(folder / "models" / "triple.onnx", 3.0)
    with serving(folder, "--device", "cpu=100MiB") as found:
        yield found


@pytest.fixture
def index(server: RunningServer, caplog: pytest.LogCaptureFixture) -> Iterator[marqo.index.Index]:
    with caplog.at_level(logging.WARNING):
        yield marqo.Client(server.about["url"]).index("mine")
    assert not [record for record in caplog.records if record.name.startswith("marqo")]  # it takes our version


def post(server: RunningServer, name: str) -> None:
    properties = {"url": "triple.onnx", "type": "onnx", "dimensions": 512}
    answer = server.client.post("/models", json={"model_name": name, "model_device": "cpu", "model_properties": properties})
    assert answer.status_code == 200, answer.text


def loaded(index: marqo.index.Index) -> set[tuple[str, str]]:
    return {(entry["model_name"], entry["model_device"]) for entry in index.get_loaded_models()["models"]}


@pytest.mark.parametrize("name", NAMES)
def test_models_of_all_names_are_seen_and_ejected(server: RunningServer, index: marqo.index.Index, name: str) -> None:
    post(server, name)
    assert (name, "cpu") in loaded(index)
    assert index.eject_model(name) == {"result": "success", "message": f"successfully ejected model `{name}` from device `cpu`"}
    assert (name, "cpu") not in loaded(index)
    with pytest.raises(MarqoWebError) as failure:
        index.eject_model(name)
    assert (failure.value.status_code, failure.value.code, failure.value.error_type) == (404, "model_not_in_cache", "invalid_request")


def test_a_name_is_never_taken_as_a_prefix(server: RunningServer, index: marqo.index.Index) -> None:
    post(server, "hf/e5")
    post(server, "hf/e5-base-v2")
    index.eject_model("hf/e5")
    assert loaded(index) >= {("hf/e5-base-v2", "cpu")}
    assert ("hf/e5", "cpu") not in loaded(index)
    for name in ("hf", "hf/", "hf/e5-base", "HF/E5-BASE-V2"):
        with pytest.raises(MarqoWebError, match="is not cached or found"):
            index.eject_model(name)
    assert ("hf/e5-base-v2", "cpu") in loaded(index)


@pytest.mark.parametrize("name", ["nobody", "../triple", "triple\0", "a b", "ü"])
def test_models_that_are_not_there(index: marqo.index.Index, name: str) -> None:
    with pytest.raises(MarqoWebError) as failure:
        index.eject_model(name)
    assert (failure.value.status_code, failure.value.code) == (404, "model_not_in_cache")


def test_entries_have_the_properties_and_both_spellings(server: RunningServer, index: marqo.index.Index) -> None:
    post(server, "hf/e5-base-v2")
    (entry,) = (one for one in index.get_loaded_models()["models"] if one["model_name"] == "hf/e5-base-v2")
    assert entry["modelName"] == entry["model_name"]
    assert entry["model_device"] == "cpu"
    assert entry["model_properties"]["dimensions"] == 512
    assert entry["size_bytes"] > 0


def test_an_ejected_model_comes_back_when_it_is_asked(server: RunningServer, index: marqo.index.Index) -> None:
    assert ask(server, "triple", x=np.array([2.0], np.float32)) == {"y": [6.0]}
    index.eject_model("triple")
    assert ("triple", "cpu") not in loaded(index)
    assert ask(server, "triple", x=np.array([2.0], np.float32)) == {"y": [6.0]}
    assert ("triple", "cpu") in loaded(index)


def test_devices(server: RunningServer, index: marqo.index.Index) -> None:
    found = index.get_cpu_info()
    assert found["cpu_usage_percent"].endswith(" %")
    assert found["memory_used_percent"].endswith(" %")
    assert float(found["memory_used_gb"]) > 0
    (device,) = found["devices"]
    assert device["budget_bytes"] == 100 << 20
    if server.client.get("/device/cuda").status_code == 200:
        assert index.get_cuda_info()["cuda_devices"]
        return
    with pytest.raises(MarqoWebError) as failure:
        index.get_cuda_info()
    assert (failure.value.status_code, failure.value.code) == (400, "hardware_compatability_error")
    assert failure.value.message["message"] == "CUDA is not available on this instance"
