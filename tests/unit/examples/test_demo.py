from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from examples.demo.check import read_text
from examples.demo.inputs import molecule, syllables, text_line, turned_line
from examples.demo.report import Counts, latencies_ms, lru_hits, read_counts
from examples.demo.repository import DemoModel
from examples.demo.traffic import Served, popularity, sequence


@pytest.mark.parametrize(
    ("names", "budget", "hits"),
    [
        ("aaa", 10, 2),
        ("aba", 20, 1),
        ("aba", 10, 0),
        ("abaca", 20, 2),  # a was used after b, so b goes for c
        ("abcabc", 20, 0),  # the loop that LRU never wins
        ("abcabc", 30, 3),
    ],
)
def test_lru_hits(names: str, budget: int, hits: int) -> None:
    assert lru_hits(names, dict.fromkeys("abc", 10), budget) == hits


def test_lru_evicts_as_many_as_it_takes() -> None:
    assert lru_hits(["a", "b", "big", "a", "b"], {"a": 1, "b": 1, "big": 3}, 3) == 0


def test_counts_are_read_from_the_metrics() -> None:
    text = (
        "# TYPE modelpool_hits counter\n"
        'modelpool_hits_total{model="a"} 3\n'
        'modelpool_hits_total{model="b"} 4\n'
        "# TYPE modelpool_misses counter\n"
        'modelpool_misses_total{model="a"} 2\n'
        "# TYPE modelpool_loads counter\n"
        'modelpool_loads_total{model="a"} 1\n'
        "# TYPE modelpool_unloads counter\n"
        'modelpool_unloads_total{model="a",reason="space"} 5\n'
        'modelpool_unloads_total{model="a",reason="idle"} 9\n'
    )
    assert read_counts(text) == Counts(hits=7, misses=2, loads=1, evictions=5)


def test_a_miss_is_a_request_during_which_its_model_was_loaded() -> None:
    served = [Served("a", 0.0, 1.0), Served("a", 2.0, 2.5), Served("b", 0.0, 0.25)]
    assert latencies_ms(served, {"a": [0.9]}) == ([500.0, 250.0], [1000.0])


def test_popularity_has_every_model_once_and_real_ones_spread() -> None:
    models = [DemoModel(f"real{i}", Path()) for i in range(3)] + [DemoModel(f"made{i}", Path(), 8) for i in range(12)]
    names = popularity(models)
    assert sorted(names) == sorted(model.name for model in models)
    assert [names.index(f"real{i}") for i in range(3)] == [0, 4, 8]


def test_sequence_is_skewed_and_repeatable() -> None:
    names = sequence(list("abcdefgh"), 2000, 1)
    assert names == sequence(list("abcdefgh"), 2000, 1)
    assert names.count("a") > names.count("b") > names.count("h") > 0


def test_read_text_drops_blanks_and_repeats() -> None:
    steps = [1, 1, 0, 1, 2, 3, 0]
    assert read_text(np.eye(4)[steps], ["h", "i"]) == "hhi "


def test_inputs_have_the_shapes_the_models_want() -> None:
    rng = np.random.default_rng(0)
    assert text_line(rng).tensors["x"].shape == (1, 3, 48, 256)
    assert turned_line(rng).tensors["x"].shape == (1, 3, 48, 192)
    assert np.abs(syllables(rng)).max() < 0.5
    graph = molecule(rng).tensors
    atoms = len(graph["feat"])
    assert graph["edge_index"].max() == atoms - 1
    assert graph["edge_feat"].shape == (graph["edge_index"].shape[1], 13)
    assert graph["laplacian_eigvec"].shape == (atoms, 8)
