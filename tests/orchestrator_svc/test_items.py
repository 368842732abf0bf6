"""Items: what clients write, as it is shown and as a model sees it, and what is wrong with what is refused."""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec
import pytest
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseReasoningItem

from orchestrator_svc.errors import InvalidRequest, Unsupported
from orchestrator_svc.input_items import read_input
from orchestrator_svc.items import Item, JsonObject, make
from orchestrator_svc.tools.names import flat_name
from tests.fakes.schemas import check_item_shape
from tests.fakes.strict import refusal

CODEX = Path(__file__).parent.parent / "data" / "codex"
PIXEL = "data:image/png;base64,AA=="


def read(*items: JsonObject | str | bytes) -> tuple[Item, ...]:
    numbers = count(1)
    sources = [item if isinstance(item, bytes) else json.dumps(item).encode() for item in items]
    return read_input(sources, lambda prefix: f"{prefix}_{next(numbers)}")


def prompt(*items: JsonObject | bytes) -> list[JsonObject]:
    """What the model sees."""
    return json.loads(b"[" + b",".join(item.rendered for item in read(*items) if item.rendered) + b"]")


def user(*parts: JsonObject) -> JsonObject:
    return {"type": "message", "role": "user", "content": list(parts)}


def said(text: str) -> JsonObject:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def text(words: str) -> JsonObject:
    return {"type": "input_text", "text": words}


def call(**fields: object) -> JsonObject:
    return {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"} | fields


def output(value: object = "5", **fields: object) -> JsonObject:
    return {"type": "function_call_output", "call_id": "call_1", "output": value} | fields


FORMS: dict[str, tuple[JsonObject, list[JsonObject]]] = {
    "an easy message": ({"role": "user", "content": "hi"}, [user(text("hi"))]),
    "an easy system message": ({"role": "system", "content": "hi"}, [user(text("hi")) | {"role": "system"}]),
    "an easy developer message": ({"role": "developer", "content": "hi"}, [user(text("hi")) | {"role": "developer"}]),
    "an easy assistant message": ({"role": "assistant", "content": "hi"}, [said("hi")]),
    "a message without text": ({"role": "user", "content": ""}, [user(text(""))]),
    "what only a client cares for": (
        {"id": "msg_x", "type": "message", "role": "user", "status": "completed", "content": [text("hi")], "phase": None, "tag": 7},
        [user(text("hi"))],
    ),
    "an assistant message of the SDK": (
        {
            "id": "msg_x",
            "type": "message",
            "role": "assistant",
            "status": None,
            "phase": None,
            "content": [{"type": "output_text", "text": "hi", "annotations": None, "logprobs": None}],
        },
        [said("hi")],
    ),
    "an assistant message in parts": (
        {"role": "assistant", "content": [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "b"}, text("c")]},
        [said("abc")],
    ),
    "an assistant message without parts": ({"role": "assistant", "content": []}, []),
    "an image without detail": (
        user({"type": "input_image", "image_url": PIXEL}),
        [user({"type": "input_image", "image_url": PIXEL, "detail": "auto"})],
    ),
    "an image with detail": (
        user(text("see"), {"type": "input_image", "image_url": PIXEL, "detail": "low", "file_id": None}),
        [user(text("see"), {"type": "input_image", "image_url": PIXEL, "detail": "low"})],
    ),
    "an image in its original size": (
        user({"type": "input_image", "image_url": PIXEL, "detail": "original"}),
        [user({"type": "input_image", "image_url": PIXEL, "detail": "high"})],
    ),
    "plain reasoning": (
        {
            "id": "rs_x",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "short"}],
            "content": [{"type": "reasoning_text", "text": "a"}, {"type": "reasoning_text", "text": "b"}],
            "encrypted_content": None,
            "status": None,
        },
        [{"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "a\nb"}]}],
    ),
    "summarised reasoning": ({"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}], "content": None}, []),
    "opaque reasoning of a client": ({"type": "reasoning", "summary": [], "encrypted_content": "x"}, []),
    "reasoning that says nothing": ({"type": "reasoning", "summary": None, "content": []}, []),
    "a call": (
        call(id="fc_x", status="completed", namespace=None),
        [{"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}],
    ),
    "a call that was cut": (call(status="incomplete"), []),
    "a call with spaced arguments": (call(arguments='{"a" : 1}'), [call(arguments='{"a" : 1}')]),
    "a call without arguments": (call(arguments=" "), [call(arguments="{}")]),
    "a call with half its arguments": (call(arguments='{"a":'), [call(arguments='{"unparseable":"{\\"a\\":"}')]),
    "a call with a list of arguments": (call(arguments="[1]"), [call(arguments='{"unparseable":"[1]"}')]),
    "a call with half a pair in it (B048)": (call(arguments='{"a":"\\ud83d"}'), [call(arguments='{"a":"\\ufffd"}')]),
    "a call by a name with a dot": (call(name="a.b"), [call(name=flat_name("function", "", "a.b"))]),
    "a call by a long name": (call(name="n" * 65), [call(name=flat_name("function", "", "n" * 65))]),
    "a call in a namespace": (call(name="now", namespace="clock"), [call(name="clock__now")]),
    "a freeform call": (
        {"type": "custom_tool_call", "call_id": "call_1", "name": "patch", "input": 'a "b"'},
        [call(name="patch", arguments='{"input":"a \\"b\\""}')],
    ),
    "a freeform call that was cut": (
        {"type": "custom_tool_call", "call_id": "call_1", "name": "patch", "input": "a", "status": "incomplete"},
        [],
    ),
    "a search for tools": (
        {"type": "tool_search_call", "call_id": "call_1", "execution": "client", "arguments": {"query": "clock"}},
        [call(name="tool_search", arguments='{"query":"clock"}')],
    ),
    "tools that came with the input": ({"type": "additional_tools", "role": "developer", "tools": []}, []),
    "a web search of another conversation": ({"type": "web_search_call", "status": "completed", "action": {"type": "search"}}, []),
    "tools of a server": ({"type": "mcp_list_tools", "server_label": "x", "tools": []}, []),
    "a request for an approval": ({"type": "mcp_approval_request", "server_label": "x", "name": "n", "arguments": "{}"}, []),
    "an approval": ({"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}, []),
    "an output": (output("5", status=None, id=None), [output("5")]),
    "an output in parts": (
        output([text("5"), {"type": "input_image", "image_url": PIXEL}]),
        [output([text("5"), {"type": "input_image", "image_url": PIXEL, "detail": "auto"}])],
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_neutral_prompt_form(name: str) -> None:
    given, expected = FORMS[name]

    assert prompt(given) == expected


def test_a_strict_engine_takes_every_prompt_form() -> None:
    """B015, B065: no ids, no statuses, no nulls, no names or arguments that an engine refuses."""
    for given, _ in FORMS.values():
        items = prompt(*paired(given))
        body = msgspec.json.encode({"model": "m", "store": False, "input": items or [user(text("hi"))]})
        assert refusal("/v1/responses", body, frozenset()) is None


def test_a_call_that_ran_elsewhere_is_a_pair() -> None:
    mcp = {"id": "mcp_1", "type": "mcp_call", "server_label": "x", "name": "look", "arguments": '{"a":1}', "output": "5", "error": None}

    assert prompt(mcp) == [
        call(call_id="call_mcp_1", name="x__look", arguments='{"a":1}'),
        output("5", call_id="call_mcp_1"),
    ]


def test_tools_that_were_found_are_told_by_their_names() -> None:
    search: JsonObject = {"type": "tool_search_call", "call_id": "call_1", "execution": "client", "arguments": {}}
    namespace = {"type": "namespace", "name": "clock", "tools": [{"type": "function", "name": "now", "description": "Tells the time."}]}
    found: JsonObject = {"type": "tool_search_output", "call_id": "call_1", "execution": "client", "tools": [namespace]}

    _, told = prompt(search, found)

    assert told == output('{"tools":[{"name":"clock__now","description":"Tells the time."}]}')


def paired(item: JsonObject) -> list[JsonObject]:
    if str(item.get("type")).endswith("_call") and item.get("call_id") and item.get("status") != "incomplete":
        return [item, output()]
    return [call(), item] if item.get("type") == "function_call_output" else [item]


SHOWN: dict[str, tuple[JsonObject, JsonObject]] = {
    "an easy message": ({"role": "user", "content": "hi"}, {"id": "msg_1"} | user(text("hi"))),
    "an assistant message": (
        {"role": "assistant", "content": "hi", "phase": "commentary"},
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "hi", "annotations": []}],
            "phase": "commentary",
        },
    ),
    "unknown fields": (
        {"id": "msg_x", "type": "message", "role": "user", "content": [text("hi") | {"tag": 1}], "tag": {"a": None}, "gone": None},
        {"id": "msg_x", "type": "message", "role": "user", "content": [text("hi") | {"tag": 1}], "tag": {"a": None}},
    ),
    "reasoning": (
        {"id": "rs_x", "type": "reasoning", "summary": [], "content": None, "encrypted_content": "x"},
        {"id": "rs_x", "type": "reasoning", "summary": [], "encrypted_content": "x"},
    ),
    "a call": (call(), {"id": "fc_1", "status": "completed"} | call()),
    "an output": (output(), {"id": "fco_1", "status": "completed"} | output()),
}


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_shown_of_an_item_is_what_was_given(name: str) -> None:
    """B009: nothing but nulls is lost."""
    given, expected = SHOWN[name]
    (item,) = read(given)
    shown = json.loads(item.shown)

    assert {key: value for key, value in shown.items() if value is not None} == {k: v for k, v in expected.items() if v is not None}
    assert next(iter(shown)) == "id"


REFUSED: dict[str, tuple[tuple[JsonObject | bytes, ...], str]] = {
    "no JSON": ((b"{",), "input[0]"),
    "no object": ((b"[]",), "input[0]"),
    "too deep": ((b'{"a":' * 5000 + b"1" + b"}" * 5000,), "input[0]"),
    "no type": (({"content": "hi"},), "input[0].type"),
    "a type that is no string": (({"type": 5},), "input[0].type"),
    "an unknown role": ((user(text("hi")) | {"role": "robot"},), "input[0].role"),
    "no role": (({"type": "message", "content": "hi"},), "input[0].role"),
    "no content": (({"role": "user"},), "input[0].content"),
    "content that is a number": (({"role": "user", "content": 5},), "input[0].content"),
    "a part that is a string": (({"role": "user", "content": ["hi"]},), "input[0].content[0]"),
    "a part of another role": ((user(text("a"), {"type": "output_text", "text": "hi"}),), "input[0].content[1].type"),
    "a part without a type": ((user({"text": "hi"}),), "input[0].content[0].type"),
    "a part without text": ((user({"type": "input_text"}),), "input[0].content[0].text"),
    "text that is a number": ((user({"type": "input_text", "text": 5}),), "input[0].content[0].text"),
    "an image without a place": ((user({"type": "input_image"}),), "input[0].content[0].image_url"),
    "an image of another dialect": ((user({"type": "input_image", "image_url": {"url": PIXEL}}),), "input[0].content[0].image_url"),
    "an odd detail": ((user({"type": "input_image", "image_url": PIXEL, "detail": "huge"}),), "input[0].content[0].detail"),
    "an assistant's image": (({"role": "assistant", "content": [{"type": "input_image"}]},), "input[0].content[0].type"),
    "an assistant's status": (({"role": "assistant", "content": "a", "status": "done"},), "input[0].status"),
    "a refusal without words": (({"role": "assistant", "content": [{"type": "refusal"}]},), "input[0].content[0].refusal"),
    "a summary that is a string": (({"type": "reasoning", "summary": "short"},), "input[0].summary"),
    "a summary without text": (({"type": "reasoning", "summary": [{}]},), "input[0].summary[0].text"),
    "reasoning that is a string": (({"type": "reasoning", "summary": [], "content": ["hm"]},), "input[0].content[0]"),
    "a call without a call_id": ((call(call_id=None),), "input[0].call_id"),
    "a call with an empty call_id": ((call(call_id=""),), "input[0].call_id"),
    "a call with a call_id that is a novel": ((call(call_id="c" * 129),), "input[0].call_id"),
    "a call without a name": ((call(name=None),), "input[0].name"),
    "a call with an object of arguments": ((call(arguments={}),), "input[0].arguments"),
    "an odd status of a call": ((call(status="done"),), "input[0].status"),
    "an output that is null": ((call(), output(None)), "input[1].output"),
    "an output that is an object": ((call(), output({"a": 1})), "input[1].output"),
    "an output part of a message": ((call(), output([{"type": "output_text", "text": "a"}])), "input[1].output[0].type"),
    "an output without a call_id": ((output(call_id=5),), "input[0].call_id"),
    "an approval that is a word": (({"type": "mcp_approval_response", "approval_request_id": "a", "approve": "yes"},), "input[0].approve"),
    "an approval of nothing": (({"type": "mcp_approval_response", "approve": True},), "input[0].approval_request_id"),
    "an odd reason": (
        ({"type": "mcp_approval_response", "approval_request_id": "a", "approve": False, "reason": 5},),
        "input[0].reason",
    ),
    "a freeform call without input": (({"type": "custom_tool_call", "call_id": "c", "name": "n"},), "input[0].input"),
    "a search that the gateway runs": (
        ({"type": "tool_search_call", "call_id": "c", "execution": "server"},),
        "input[0].execution",
    ),
    "tools that are no list": (({"type": "additional_tools", "tools": {}},), "input[0].tools"),
    "a tool that is a word": (({"type": "additional_tools", "tools": ["clock"]},), "input[0].tools[0]"),
    "a server's call without arguments": (({"type": "mcp_call", "server_label": "x", "name": "n"},), "input[0].arguments"),
    "an id that is a number": ((user(text("a")) | {"id": 5},), "input[0].id"),
    "an empty id": ((user(text("a")) | {"id": ""},), "input[0].id"),
    "an id with a line feed": ((user(text("a")) | {"id": "a\nb"},), "input[0].id"),
    "an id that is a novel": ((user(text("a")) | {"id": "x" * 129},), "input[0].id"),
    "an id that stands twice": ((user(text("a")) | {"id": "msg_x"}, user(text("b")), user(text("c")) | {"id": "msg_x"}), "input[2].id"),
    "the second of two": ((user(text("a")), {"role": "user"}), "input[1].content"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_named(name: str) -> None:
    given, param = REFUSED[name]
    with pytest.raises(InvalidRequest) as caught:
        read(*given)

    assert caught.value.param == param


@pytest.mark.parametrize(
    "item",
    [
        {"type": "local_shell_call", "action": {}},
        {"type": "x" * 100},
    ],
    ids=lambda item: item["type"][:20],
)
def test_an_item_of_a_kind_that_is_not_supported_is_refused_by_its_type(item: JsonObject) -> None:
    with pytest.raises(Unsupported) as caught:
        read(user(text("hi")), item)

    assert caught.value.param == "input[1].type"


def test_a_field_that_is_not_supported_is_refused_by_its_name() -> None:
    with pytest.raises(Unsupported) as caught:
        read(user({"type": "input_image", "file_id": "file_1"}))

    assert caught.value.param == "input[0].content[0].file_id"


def test_the_output_of_the_sdk_can_be_appended_to_the_input() -> None:
    """`input += [item.model_dump() for item in response.output]`, nulls and all."""
    reasoning = ResponseReasoningItem(id="rs_x", type="reasoning", summary=[])
    message = ResponseOutputMessage.model_validate(
        {
            "id": "msg_x",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Let me look.", "annotations": []}],
        }
    )
    a_call = ResponseFunctionToolCall(type="function_call", call_id="call_1", name="look", arguments="{}")
    dumped = [item.model_dump() for item in (reasoning, message, a_call)]

    items = read(*dumped, output("5"))

    assert [item.id for item in items] == ["rs_x", "msg_x", "fc_1", "fco_2"]
    assert prompt(*dumped, output("5")) == [said("Let me look."), call(), output("5")]
    assert not any(value is None for item in items for value in json.loads(item.body).values())


@pytest.mark.parametrize(
    "item",
    [
        call(content=["odd"]),
        output("5", content=[5], summary=["odd"]),
        {"type": "web_search_call", "output": ["odd"], "content": [None]},
        {"type": "mcp_list_tools", "tools": ["odd"], "output": [[]]},
        {
            "type": "tool_search_output",
            "call_id": "call_1",
            "execution": "client",
            "tools": [{"type": "namespace", "name": "a", "tools": ["odd"]}],
        },
    ],
    ids=lambda item: item["type"],
)
def test_fields_that_nobody_here_knows_may_hold_anything(item: JsonObject) -> None:
    (taken,) = read(item)

    assert {key: json.loads(taken.body)[key] for key in item} == item


def test_halves_of_pairs_and_nul_are_kept_apart_b048_b135_b138() -> None:
    (item,) = read(b'{"role":"user","content":"\\ud83c\\udf78 \\ud83d \\u0000"}')

    assert json.loads(item.rendered)["content"][0]["text"] == "\U0001f378 \ufffd \0"


@pytest.mark.parametrize(
    ("item", "tokens"),
    [
        ({"role": "user", "content": "12345"}, 2 + 12 + 7),
        ({"role": "user", "content": "阴"}, 1 + 12 + 7),
        (user({"type": "input_image", "image_url": PIXEL * 1000}), 12 + 7 + 1024),
        (call(arguments='{"a":12}'), 3 + 12),
        (output("12345678"), 2 + 12),
        (output([text("1234"), text("5678")]), 2 + 12 + 14),
    ],
    ids=["text", "text of few characters", "image", "call", "output", "output in parts"],
)
def test_the_size_of_an_item_is_estimated(item: JsonObject, tokens: int) -> None:
    assert read(item)[0].tokens == tokens


def test_calls_and_outputs_say_what_they_open_and_close() -> None:
    opened, closed, cut = read(call(), output(), call(status="incomplete", call_id="call_2"))

    assert (opened.opens, opened.closes) == ("call_1", None)
    assert (closed.opens, closed.closes) == (None, "call_1")
    assert (cut.opens, cut.closes) == (None, None)


def test_opaque_reasoning_goes_back_to_its_maker_only() -> None:
    body: JsonObject = {"type": "reasoning", "summary": [], "encrypted_content": "x"}

    made = make("rs_1", body, "engine")

    assert (made.origin, json.loads(made.rendered)) == ("engine", body)


# What the Codex CLI sends.


def codex_items(file: Path) -> Iterator[JsonObject]:
    for request in json.loads(file.read_text("utf-8"))["requests"]:
        body = request.get("body")
        yield from body["input"] if isinstance(body, dict) and isinstance(body.get("input"), list) else ()


@pytest.mark.parametrize("file", sorted(CODEX.glob("*.json")), ids=lambda file: file.stem)
def test_items_of_the_codex_cli_are_read(file: Path) -> None:
    for item in codex_items(file):
        (taken,) = read(item)
        assert taken.id == item.get("id", taken.id)
        check_item_shape(presentable(taken))


def presentable(item: Item) -> JsonObject:
    """The item as a list shows it, with an image's size that the published shapes do not know."""
    shown = json.loads(item.shown.replace(b'"original"', b'"auto"'))
    return shown | {"status": "completed"} if item.type == "message" else shown
