"""Requests: what is not valid or not supported yet is a 400 that names the parameter, before any engine is asked."""

import json

import pytest

from tests.end_to_end.client import Client, refusal_of, text_of
from tests.fakes.answers import Json
from tests.fakes.engine import FakeEngine

USER: Json = {"role": "user", "content": "hi"}
CALL: Json = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
OUTPUT: Json = {"type": "function_call_output", "call_id": "c1", "output": "red"}

INVALID: list[tuple[Json, str]] = [
    ({"temperature": 3}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": -1}, "top_p"),
    ({"max_output_tokens": 1}, "max_output_tokens"),
    ({"max_tool_calls": 0}, "max_tool_calls"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"metadata": {"k": "v" * 513}}, "metadata"),
    ({"metadata": {f"k{n}": "v" for n in range(17)}}, "metadata"),
    ({"metadata": {"k" * 65: "v"}}, "metadata"),
    ({"metadata": {"k": 1}}, "metadata"),
    ({"truncation": "sometimes"}, "truncation"),
    ({"include": ["secrets"]}, "include[0]"),
    ({"instructions": 1}, "instructions"),
    ({"store": "yes"}, "store"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "bad name", "schema": {}}}}, "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ({"tool_choice": "look"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "look"}}, "tool_choice"),
    ({"tool_choice": {"type": "code_interpreter"}}, "tool_choice"),
    ({"tools": [{"type": "function", "name": "a"}, {"type": "function", "name": "a"}]}, "tools[1]"),
    ({"tools": [{"name": "a"}]}, "tools[0].type"),
    ({"tools": {}}, "tools"),
    ({"input": 1}, "input"),
    ({"input": {}}, "input"),
    ({"input": ["hi"]}, "input[0]"),
    ({"input": [USER, {"role": "boss", "content": "hi"}]}, "input[1].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "output_text", "text": "x"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({"input": [{"content": "hi"}]}, "input[0].type"),
    ({"input": [CALL]}, "input"),
    ({"input": [OUTPUT]}, "input"),
    ({"input": [OUTPUT, CALL]}, "input"),
    ({"input": [CALL, OUTPUT, OUTPUT]}, "input"),
    ({"input": [CALL, CALL, OUTPUT]}, "input"),
    ({"input": [{**USER, "id": "x"}, {**USER, "id": "x"}]}, "input[1].id"),
    ({"input": [{**CALL, "arguments": {}}, OUTPUT]}, "input[0].arguments"),
    ({"previous_response_id": 5}, "previous_response_id"),
    ({"model": ""}, "model"),
    ({"model": None}, "model"),
]
UNSUPPORTED: list[tuple[Json, str]] = [
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "name": "a"}, {"type": "computer_use_preview"}]}, "tools[1].type"),
    ({"input": [{"type": "computer_call", "id": "cu_1", "call_id": "c1", "action": {}}]}, "input[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input[0].content[0].file_id"),
]


@pytest.mark.parametrize(("fields", "param"), INVALID, ids=lambda value: value if isinstance(value, str) else "")
async def test_what_is_not_valid_is_named(ada: Client, engine: FakeEngine, fields: Json, param: str) -> None:
    """B041: a real 400 in either way of asking, with the place."""
    refusal = await ada.refused(**{"input": "hi", **fields})

    assert refusal.said == (400, "invalid_request", param)
    assert engine.posts == []


@pytest.mark.parametrize(("fields", "param"), UNSUPPORTED, ids=lambda value: value if isinstance(value, str) else "")
async def test_what_is_not_supported_is_named(ada: Client, engine: FakeEngine, fields: Json, param: str) -> None:
    """Refused, not run in some other way in silence."""
    refusal = await ada.refused(**{"input": "hi", **fields})

    assert refusal.said == (400, "unsupported", param)
    assert engine.posts == []


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"x"', b"null", b"\xff\xfe", b'{"model":"m","input":' + b"[" * 5000, b'{"a":1}{"b":2}']
)
async def test_what_is_no_json_object_is_refused(ada: Client, engine: FakeEngine, body: bytes) -> None:
    """Never a 500."""
    assert refusal_of(await ada.request("POST", "/v1/responses", body)).said == (400, "invalid_request", None)


async def test_a_stream_option_without_a_stream_is_refused(ada: Client, engine: FakeEngine) -> None:
    """It would be ignored in silence."""
    reply = await ada.request("POST", "/v1/responses", {"model": "m", "input": "hi", "stream_options": {"include_obfuscation": False}})

    assert refusal_of(reply).said == (400, "invalid_request", "stream_options")


async def test_shapes_that_sdks_send_are_taken(ada: Client, engine: FakeEngine) -> None:
    """Easy messages, nulls, assistant content without ids, images without detail, lists and strings as outputs."""
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    items: list[Json] = [
        {"role": "developer", "content": "Be kind.", "type": "message", "id": None, "status": None},
        {"role": "user", "content": [{"type": "input_text", "text": "look"}, image]},
        {"role": "assistant", "content": "Looking."},
        {
            "role": "assistant",
            "content": [{"type": "output_text", "text": "One."}, {"type": "refusal", "refusal": "No."}],
            "phase": "commentary",
        },
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": None, "status": None},
        {**CALL, "id": "fc_1", "status": "completed", "namespace": None},
        {**OUTPUT, "id": None, "output": [{"type": "input_text", "text": "red"}, {**image, "detail": "low"}]},
        {"role": "user", "content": "and now?"},
    ]
    response = await ada.create(items)

    assert text_of(response) == "You said: and now?"
    assert len(await ada.input_items(response["id"])) == len(items)


async def test_an_open_call_of_the_parent_wants_its_output(ada: Client, engine: FakeEngine) -> None:
    """A call without an output, or an output without a call, is refused and named."""
    first = await ada.create("please look", tools=[{"type": "function", "name": "look", "parameters": {"type": "object"}}])
    none = await ada.refused("never mind", previous_response_id=first["id"])
    other = await ada.refused([OUTPUT], previous_response_id=first["id"])

    assert none.said == other.said == (400, "invalid_request", "input")
    assert "c1" in other.message
    assert len(engine.posts) == 1


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/", 404),
        ("PUT", "/v1/responses", 405),
        ("POST", "/v1/responses/resp_1/nothing", 404),
    ],
)
async def test_what_is_not_there_has_the_usual_shape(ada: Client, engine: FakeEngine, method: str, path: str, status: int) -> None:
    """Unknown routes and methods are errors like all others."""
    assert refusal_of(await ada.request(method, path, b"{}" if method == "POST" else None)).status == status


async def test_models_are_those_of_the_engine(ada: Client, engine: FakeEngine) -> None:
    """The list and one of it."""
    listed, one = await ada.request("GET", "/v1/models"), await ada.request("GET", "/v1/models/m")
    none = await ada.request("GET", "/v1/models/x/y")

    assert listed.json["data"] == [json.loads(one.body)]
    assert refusal_of(none).said == (404, "model_not_found", "model")
