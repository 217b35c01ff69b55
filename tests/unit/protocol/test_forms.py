"""Requests of a known layout: what is read of them is what the general way reads, or nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelpool.errors import ModelpoolError
from modelpool.protocol.forms import MOST_FORMS, MOST_LEARNT, Forms, form_of
from modelpool.protocol.inference import decode_request

NAMES = st.text(min_size=1, max_size=8) | st.sampled_from(["data", '"data":[1]', '"data": [', "],[", "a]", "\u2603", 'x","data":[3],"y":"'])
NUMBERS = st.floats(-(2.0**99), 2.0**99, width=32) | st.integers(-(10**6), 10**6)


@st.composite
def layouts(draw: st.DrawFn) -> list[dict[str, Any]]:
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    return [
        {"name": name, "datatype": draw(st.sampled_from(["FP32", "FP64"])), "shape": draw(st.sampled_from([[1], [2], [1, 2], [3, 1]]))}
        for name in names
    ]


def body(layout: list[dict[str, Any]], data: list[list[Any]], spaces: bool = False) -> bytes:
    inputs = [{**one, "data": numbers} for one, numbers in zip(layout, data, strict=True)]
    return json.dumps({"inputs": inputs}, separators=None if spaces else (",", ":"), ensure_ascii=False).encode()


def numbers(draw: st.DrawFn, layout: list[dict[str, Any]]) -> list[list[Any]]:
    return [draw(st.lists(NUMBERS, min_size=size, max_size=size)) for size in (int(np.prod(one["shape"])) for one in layout)]


@given(st.data(), layouts(), st.booleans())
def test_what_fits_a_form_is_what_the_general_way_reads(data: st.DataObject, layout: list[dict[str, Any]], spaces: bool) -> None:
    draw = data.draw
    forms = Forms()
    forms.read(body(layout, numbers(draw, layout), spaces), 1)
    bodies = [body(layout, numbers(draw, layout), spaces) for _ in range(3)]
    found = [forms.read(one, 1) for one in bodies]
    if found[0] is None:
        return  # a name that looks like a list keeps a layout from being learnt
    for place, column in enumerate(found[0].form.columns):
        expected = [decode_request(one, -1, 1)[0].inputs[column.name] for one in bodies]
        texts = [one.texts[place] for one in found if one is not None]
        joined = column.read(texts)
        assert joined is not None
        np.testing.assert_array_equal(joined, np.concatenate([one.array.ravel() for one in expected]))
        assert {(one.datatype, one.shape) for one in expected} == {(column.datatype, column.shape)}


PLAIN = b'{"inputs":[{"name":"a","shape":[1,2],"datatype":"FP32","data":[%b]},{"name":"b","shape":[1],"datatype":"FP64","data":[%b]}]}'


def test_a_layout_is_known_after_its_first_request() -> None:
    forms = Forms()
    assert forms.read(PLAIN % (b"1,2", b"3"), 7) is None
    found = forms.read(PLAIN % (b" 4 ,5.5e0", b"-6"), 7)
    assert found is not None
    assert (found.version, found.form.rows, found.texts) == (7, 1, [b" 4 ,5.5e0", b"-6"])
    assert {name: one.array.tolist() for name, one in found.inputs.items()} == {"a": [[4.0, 5.5]], "b": [-6.0]}
    assert (found.wanted, found.parameters, found.ident) == ((), {}, "")


@pytest.mark.parametrize(
    "first",
    [b"", b"1", b"1,2,3", b"1,,2", b"1,2,", b"1,x", b"[1,2", b'"1",2', b"1,1e39", b"1,NaN", b"1,null", b'1,2],"x":[3', b"1,\xff"],
)
def test_what_is_not_as_many_numbers_is_not_read(first: bytes) -> None:
    forms = Forms()
    forms.read(PLAIN % (b"1,2", b"3"), 1)
    wrong = PLAIN % (first, b"3")
    found = forms.read(wrong, 1)
    if found is None:
        return
    assert found.form.columns[0].read([b"1,2", found.texts[0]]) is None
    assert _outcome(lambda: found.inputs["a"].array.tolist()) == _outcome(
        lambda: decode_request(wrong, -1, 1)[0].inputs["a"].array.tolist()
    )


def _outcome(read: Callable[[], object]) -> str:
    try:
        return repr(read())
    except ModelpoolError as error:
        return f"{error.code}: {error.message}"


def test_a_sum_of_numbers_that_is_right_hides_no_request_with_too_many() -> None:
    form = form_of(PLAIN % (b"1,2", b"3"))
    assert form is not None
    assert form.columns[0].read([b"1", b"2,3,4"]) is None
    assert form.columns[0].read([b"1,2", b"3,4"]) is not None


@pytest.mark.parametrize(
    "strange",
    [
        b"[]",
        b'{"inputs":[]}',
        b'{"inputs":[{"name":"a","shape":[1],"datatype":"INT8","data":[1]}]}',
        b'{"inputs":[{"name":"a","shape":[1,1],"datatype":"FP32","data":[[1]]}]}',
        b'{"id":"7","inputs":[{"name":"a","shape":[1],"datatype":"FP32","data":[1]}]}',
        b'{"inputs":[{"name":"a","shape":[1],"datatype":"FP32","data":[1]},{"name":"a","shape":[1],"datatype":"FP32","data":[1]}]}',
        b'{"inputs":[{"name":"\\"data\\":[1]","shape":[1],"datatype":"FP32","d\\u0061ta":[1]}]}',
        b'{"inputs":[{"name":"a","shape":[1],"datatype":"FP32","data":[1],"data":[2]}]}',
        b'{"inputs":[{"name":"a","shape":[1],"datatype":"FP32","data":[1]}],"parameters":{"timeout":1}}',
    ],
)
def test_layouts_that_are_not_simple_are_not_learnt(strange: bytes) -> None:
    assert form_of(strange) is None


def test_few_layouts_are_kept_and_learning_ends() -> None:
    forms = Forms()
    bodies = [b'{"inputs":[{"name":"n%d","shape":[1],"datatype":"FP32","data":[1]}]}' % number for number in range(MOST_LEARNT + 1)]
    for one in bodies[:-1]:
        assert forms.read(one, 1) is None
    kept = [forms.read(one, 1) is not None for one in bodies[:-1]]
    assert sum(kept) == MOST_FORMS
    assert all(kept[-MOST_FORMS:])
    assert forms.read(bodies[-1], 1) is None
    assert forms.read(bodies[-1], 1) is None
