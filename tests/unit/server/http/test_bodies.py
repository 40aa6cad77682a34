"""Bodies: every field is typed, or named as what is not done."""

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from tmmu.errors import InvalidRequest
from tmmu.server.http.bodies import NEUTRAL, ChatBody, CompletionBody, StreamBody, decode_body

MINIMAL = {"model": "a", "prompt": [1]}


def raw_fields(kind: type[msgspec.Struct]) -> list[str]:
    return [field.name for field in msgspec.structs.fields(kind) if field.type is msgspec.Raw]


def test_neutral_values_are_of_fields_that_are_there() -> None:
    assert set(NEUTRAL) <= {*raw_fields(CompletionBody), *raw_fields(ChatBody), *raw_fields(StreamBody)}


@pytest.mark.parametrize("name", raw_fields(CompletionBody))
def test_unsupported_fields_pass_where_they_ask_for_nothing_alone(name: str) -> None:
    for value in (None, *NEUTRAL.get(name, ())):
        assert decode_body(json.dumps(MINIMAL | {name: value}).encode(), CompletionBody).model == "a"
    for value in (True, 7, "x", {"a": 1}, [1], {"a": [[]] * 50}):
        with pytest.raises(InvalidRequest) as refusal:
            decode_body(json.dumps(MINIMAL | {name: value}).encode(), CompletionBody)
        assert refusal.value.fields["param"] == name


@pytest.mark.parametrize("params", [completion_create_params, chat_create_params])
def test_every_field_of_the_official_client_is_known(params: Any) -> None:
    kind = ChatBody if params is chat_create_params else CompletionBody
    fields = {*params.CompletionCreateParamsBase.__annotations__, "stream"}
    assert fields <= {field.name for field in msgspec.structs.fields(kind)}


def test_parts_of_other_fields_pass_where_they_ask_for_nothing_alone() -> None:
    def decode(**changes: object) -> ChatBody:
        message = {"role": "user", "content": "x"} | changes
        return decode_body(json.dumps({"model": "a", "messages": [message]}).encode(), ChatBody)

    assert decode(refusal=None).messages[0].content == "x"
    with pytest.raises(InvalidRequest, match="refusal"):
        decode(refusal="no")
    for value in (None, False):
        body = MINIMAL | {"stream": True, "stream_options": {"include_obfuscation": value}}
        assert decode_body(json.dumps(body).encode(), CompletionBody).stream
    body = MINIMAL | {"stream": True, "stream_options": {"include_obfuscation": True}}
    with pytest.raises(InvalidRequest, match="include_obfuscation"):
        decode_body(json.dumps(body).encode(), CompletionBody)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("max_tokens", 1, 1 << 31), ("temperature", 0, 2), ("top_p", 0, 1), ("n", 1, 128), ("top_k", 0, 1 << 31),
     ("seed", -(1 << 63), (1 << 63) - 1)],
)  # fmt: skip
def test_numbers_have_bounds(name: str, least: int, most: int) -> None:
    for value in (least, most):
        assert getattr(decode_body(json.dumps(MINIMAL | {name: value}).encode(), CompletionBody), name) == value
    for value in (least - 1, most + 1):
        with pytest.raises(InvalidRequest):
            decode_body(json.dumps(MINIMAL | {name: value}).encode(), CompletionBody)


@pytest.mark.parametrize(("name", "entry", "most"), [("stop", "a", 4), ("stop_token_ids", 1, 64)])
def test_arrays_have_bounds(name: str, entry: object, most: int) -> None:
    assert decode_body(json.dumps(MINIMAL | {name: [entry] * most}).encode(), CompletionBody)
    with pytest.raises(InvalidRequest, match=name):
        decode_body(json.dumps(MINIMAL | {name: [entry] * (most + 1)}).encode(), CompletionBody)


def test_truth_is_no_number() -> None:
    for name, value in (("best_of", True), ("echo", 0), ("presence_penalty", False)):
        with pytest.raises(InvalidRequest):
            decode_body(json.dumps(MINIMAL | {name: value}).encode(), CompletionBody)


@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["model", "prompt", "messages", "role", "content", "n", "stop", "tools"]) | st.text(max_size=3),
        inner, max_size=5), max_leaves=12,
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_any_bytes_are_a_request_or_one_refusal(body: bytes) -> None:
    for kind in (CompletionBody, ChatBody):
        with suppress(InvalidRequest):
            assert isinstance(decode_body(body, kind), kind)
