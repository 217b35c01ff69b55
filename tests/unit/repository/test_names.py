from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelpool.errors import InvalidName
from modelpool.repository.names import MAX_NAME_BYTES, check_name, printable


@pytest.mark.parametrize("name", ["m", "hf/e5-base-v2", "Modell-ä", "模型", "a b", "open_clip/ViT-B-32/laion2b", "...", "a..b", "x" * 255])
def test_good_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        ("a\0b", "NUL"),
        ("a\nb", "control"),
        ("a\u2028b", "control"),
        ("a\udcffb", "UTF-8"),
        ("../etc/passwd", "'..'"),
        ("a/../b", "'..'"),
        ("a/./b", "'.'"),
        ("/etc", "begins or ends"),
        ("a//b", "begins or ends"),
        ("a/", "begins or ends"),
        ("x" * 256, "longer than 255 bytes"),
        ("ä" * 128, "longer than 255 bytes"),
    ],
)
def test_bad_names(name: str, reason: str) -> None:
    with pytest.raises(InvalidName, match=reason) as caught:
        check_name(name)
    caught.value.message.encode()  # what is said of it can be sent


@given(st.text(alphabet=st.characters(), max_size=400))
def test_any_text_is_a_name_or_refused_and_can_be_shown(text: str) -> None:
    shown = printable(text)
    shown.encode()
    assert shown.isprintable() or not any(character in shown for character in "\0\n\r\u2028")
    assert len(shown) <= MAX_NAME_BYTES
    try:
        check_name(text)
    except InvalidName as error:
        error.message.encode()
        return
    assert "\0" not in text
    assert ".." not in text.split("/")
    assert len(text.encode()) <= MAX_NAME_BYTES
    assert shown == text
