"""The body of a create request: what is carried, what is refused, and with which param. Pure; no server is involved."""

import json

import msgspec
import pytest

from http_edge.errors import ConversationNotFound, InvalidRequest, PreviousResponseNotFound, Unsupported
from http_edge.parameters import Known
from http_edge.requests import AskedTurn, is_stateless, read_compaction, read_fields, read_measured_turn, read_turn
from svckit.errors import ServiceError

PARENT = "resp_0123456789abcdef0000018f0000000000000001"
CONVERSATION = "conv_0123456789abcdef0000018f0000000000000003"
TOOL = {"type": "function", "name": "f", "parameters": None, "strict": None, "description": None}


def asked(**fields: object) -> AskedTurn:
    return read_turn(read_fields(msgspec.json.encode({"model": "m", "input": "hi"} | fields)), "owner")


REFUSED = [
    ({"model": None}, "model"),
    ({"model": 1}, "model"),
    ({"model": ""}, "model"),
    ({"model": "a\x00b"}, "model"),
    ({"model": "m" * 300}, "model"),
    ({"input": None}, "input"),
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": 3}, "input"),
    ({"input": {"role": "user"}}, "input"),
    ({"input": [{"role": "user", "content": "x"}, "x"]}, "input[1]"),
    ({"input": [None]}, "input[0]"),
    ({"store": "false"}, "store"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {"include_obfuscation": "no"}, "stream": True}, "stream_options.include_obfuscation"),
    ({"stream_options": {}}, "stream_options"),
    ({"instructions": ["x"]}, "instructions"),
    ({"include": "reasoning.encrypted_content"}, "include"),
    ({"include": ["reasoning.encrypted_content", "everything"]}, "include[1]"),
    ({"metadata": {"k": 1}}, "metadata"),
    ({"metadata": {"k" * 65: "v"}}, "metadata"),
    ({"metadata": {"k": "v" * 513}}, "metadata"),
    ({"metadata": {str(n): "v" for n in range(17)}}, "metadata"),
    ({"metadata": []}, "metadata"),
    ({"tools": {}}, "tools"),
    ({"tools": [TOOL, {}]}, "tools[1].type"),
    ({"tools": ["f"]}, "tools[0]"),
    ({"tool_choice": "any"}, "tool_choice"),
    ({"tool_choice": 1}, "tool_choice"),
    ({"tool_choice": {"name": "f"}}, "tool_choice.type"),
    ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
    ({"max_tool_calls": 0}, "max_tool_calls"),
    ({"max_output_tokens": 15}, "max_output_tokens"),
    ({"max_output_tokens": 20.5}, "max_output_tokens"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 1.01}, "top_p"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}}, "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "name": "a", "schema": []}}}, "text.format.schema"),
    ({"text": {"verbosity": "loud"}}, "text.verbosity"),
    ({"reasoning": {"effort": 3}}, "reasoning.effort"),
    ({"reasoning": "high"}, "reasoning"),
    ({"truncation": "middle"}, "truncation"),
    ({"prompt_cache_key": "k" * 65}, "prompt_cache_key"),
    ({"safety_identifier": "k" * 129}, "safety_identifier"),
    ({"user": 7}, "user"),
    ({"previous_response_id": 7}, "previous_response_id"),
    ({"conversation": 7}, "conversation"),
    ({"conversation": {}}, "conversation.id"),
    ({"conversation": {"id": 7}}, "conversation.id"),
    ({"conversation": CONVERSATION, "previous_response_id": PARENT}, "conversation"),
    ({"background": "yes"}, "background"),
    ({"background": True, "store": False}, "background"),
    ({"context_management": {}}, "context_management"),
    ({"context_management": [{}]}, "context_management[0].type"),
    ({"context_management": [{"type": "magic"}]}, "context_management[0].type"),
    ({"context_management": [{"type": "compaction", "compact_threshold": 0}]}, "context_management[0].compact_threshold"),
]

UNSUPPORTED = [
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[f"{param}-{n}" for n, (_, param) in enumerate(REFUSED)])
def test_what_is_not_valid_is_refused_by_the_name_of_its_field(fields: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        asked(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(("fields", "param"), UNSUPPORTED, ids=[f"{param}-{n}" for n, (_, param) in enumerate(UNSUPPORTED)])
def test_what_this_build_cannot_do_is_refused_and_never_ignored(fields: dict[str, object], param: str) -> None:
    with pytest.raises(Unsupported) as caught:
        asked(**fields)
    assert caught.value.param == param


def test_a_turn_that_is_to_run_in_the_background_is_never_taken_for_another() -> None:
    """B125: it is not run in the foreground in silence, and what cannot be polled is refused."""
    assert asked(background=True).background is True
    assert asked(background=True, stream=True).stream is True
    assert asked(background=True).message.parameters == b'{"background":true}'
    assert [asked(background=value).background for value in (False, None)] == [False, False]


@pytest.mark.parametrize("given", [CONVERSATION, {"id": CONVERSATION}, {"id": CONVERSATION, "other": 1}])
def test_a_conversation_is_named_by_its_id_or_an_object(given: object) -> None:
    message = asked(conversation=given, input=None).message
    assert (message.conversation_id, message.previous_response_id) == (CONVERSATION, "")
    assert msgspec.json.decode(message.parameters) == {"conversation": given}


@pytest.mark.parametrize("odd", ["", "conv_1", PARENT, CONVERSATION.upper(), "conv_' OR 1=1 --", "c" * 10_240, {"id": "conv_1"}])
def test_an_odd_conversation_is_one_that_does_not_exist(odd: object) -> None:
    """B158"""
    with pytest.raises(ConversationNotFound) as caught:
        asked(conversation=odd)
    assert caught.value.param == "conversation"
    assert len(caught.value.message) < 300


def test_what_the_orchestrator_interprets_travels_in_the_parameters() -> None:
    given = {"truncation": "auto", "context_management": [{"type": "compaction", "compact_threshold": 1000}], "include": []}
    assert msgspec.json.decode(asked(**given).message.parameters) == given


def test_padding_is_only_for_those_who_ask_for_it() -> None:
    options = [None, {}, {"include_obfuscation": None}, {"include_obfuscation": False}, {"include_obfuscation": True}]
    assert [asked(stream=True, stream_options=one).padded for one in options] == [False, False, False, False, True]


def test_nothing_is_required_of_a_turn_that_is_only_measured() -> None:
    message = read_measured_turn(read_fields(b"{}"), "o")
    assert (message.owner, message.model, list(message.input), message.parameters) == ("o", "", [], b"{}")
    message = read_measured_turn(read_fields(msgspec.json.encode({"conversation": CONVERSATION, "input": "x", "personality": "p"})), "o")
    assert (message.conversation_id, len(message.input), message.parameters.count(b"personality")) == (CONVERSATION, 1, 1)


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"input": "x"}, "model"), ({"model": "m"}, "input"), ({"model": "m", "input": "x", "conversation": CONVERSATION}, "conversation")],
)
def test_a_compaction_wants_a_model_and_a_context(fields: dict[str, object], param: str) -> None:
    with pytest.raises(ServiceError) as caught:
        read_compaction(read_fields(msgspec.json.encode(fields)), "o")
    assert caught.value.param == param


def test_a_compaction_is_not_stored() -> None:
    message = read_compaction(read_fields(msgspec.json.encode({"model": "m", "previous_response_id": PARENT, "store": True})), "o")
    assert (message.store, message.previous_response_id) == (False, PARENT)


def test_null_is_accepted_for_every_optional_field() -> None:
    names = [name for name in _known_fields() if name not in ("model", "input")]
    turn = asked(**dict.fromkeys(names))
    assert (turn.stream, turn.message.store, turn.message.previous_response_id) == (False, True, "")


def test_the_borders_of_ranges_are_inside() -> None:
    asked(temperature=0, top_p=0, top_logprobs=0, max_output_tokens=16, max_tool_calls=1, presence_penalty=-2, frequency_penalty=2)
    asked(temperature=2, top_p=1, top_logprobs=20, metadata={str(n) + "k" * 62: "v" * 512 for n in range(16)})


def test_the_shapes_that_clients_send_are_accepted() -> None:
    asked(background=False, conversation=None, context_management=[], tools=[], tool_choice="required", include=[], metadata={})
    asked(tools=[TOOL], tool_choice={"type": "function", "name": "f"}, parallel_tool_calls=False, service_tier="auto", user="u")
    asked(text={"format": {"type": "json_schema", "name": "a_b-1", "schema": {"type": "object"}, "strict": True}, "verbosity": "low"})
    asked(text={"format": {"type": "text"}}, reasoning={"effort": "xhigh", "summary": "auto", "context": "all_turns"})
    asked(stream=True, stream_options={"include_obfuscation": False, "other": 1}, truncation="auto", client_metadata={"a": "b"})


def test_a_string_is_one_message_of_the_user_with_its_own_bytes() -> None:
    fields = read_fields(b'{"model":"m","input":"caf\\u00e9 \\ud83c\\udf78 \\u0000"}')
    assert list(read_turn(fields, "o").message.input) == [b'{"type":"message","role":"user","content":"caf\\u00e9 \\ud83c\\udf78 \\u0000"}']


def test_items_and_unknown_fields_are_carried_as_they_were_written() -> None:
    body = b'{ "input" : [ {"b":1.0,"a":[1 , 2]} ] , "x":1e3,"model":"m","y":12345678901234567890, "z":{"k":1,"k":2} }'
    message = read_turn(read_fields(body), "o").message
    assert list(message.input) == [b'{"b":1.0,"a":[1 , 2]}']
    assert message.parameters == b'{"x":1e3,"y":12345678901234567890,"z":{"k":1,"k":2}}'


def test_the_last_of_two_equal_keys_counts() -> None:
    fields = read_fields(b'{"model":"a","input":"x","model":"b"}')
    assert read_turn(fields, "o").message.model == "b"


def test_half_a_surrogate_pair_becomes_the_replacement_character() -> None:
    fields = read_fields(b'{"model":"m","input":"a\\ud800b"}')
    assert json.loads(read_turn(fields, "o").message.input[0])["content"] == "a\ufffdb"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"hello",
        b"[]",
        b"null",
        b'"text"',
        b'{"model":"m"} {"model":"m"}',
        b'{"a":NaN}',
        b'{"a":01}',
        b'{"a":"\xff"}',
        b'\xff{"a":1}',
        b"\xef\xbb\xbf{}",
        b'{"a":"\x01"}',
        b'{"a":' + b"[" * 200_000,
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 100_000,
        b'{"a":"\\ud800"',
    ],
    ids=lambda body: repr(body[:12]),
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_fields(body)


@pytest.mark.parametrize("field", ["tools", "metadata", "text", "x"])
def test_a_deeply_nested_field_is_refused(field: str) -> None:
    body = b'{"model":"m","input":"x","%b":' % field.encode() + b'{"a":' * 990 + b"1" + b"}" * 990 + b"}"
    with pytest.raises(ServiceError) as caught:
        read_turn(read_fields(body), "o")
    assert caught.value.reason == "invalid_request"


@pytest.mark.parametrize(
    "odd",
    [
        "",
        "resp_1",
        "../../etc/passwd",
        "resp_' OR 1=1 --",
        "resp_\x00",
        "r" * 10_240,
        "msg" + PARENT[4:],
        PARENT.upper(),
        PARENT + "\n",
        "rеsp_" + PARENT[5:],
    ],
    ids=range(10),
)
def test_an_odd_parent_is_one_that_does_not_exist(odd: str) -> None:
    """B158: the form of an id is checked before it gets anywhere."""
    with pytest.raises(PreviousResponseNotFound) as caught:
        asked(previous_response_id=odd)
    assert caught.value.param == "previous_response_id"
    assert len(caught.value.message) < 300


STATELESS = [
    {"store": False},
    {"store": False, "previous_response_id": None, "conversation": None, "background": False, "context_management": []},
    {"store": False, "tools": [TOOL], "temperature": 99, "unknown": 1},
    {"store": False, "tools": None, "background": None},
    {"store": False, "tools": [], "model": None},
    {"store": False, "input": [{"role": "user", "content": "hi"}, {"type": "reasoning", "summary": [], "encrypted_content": "x"}]},
]
STATEFUL = [
    {},
    {"store": True},
    {"store": None},
    {"store": "false"},
    {"store": False, "previous_response_id": PARENT},
    {"store": False, "previous_response_id": ""},
    {"store": False, "conversation": "conv_1"},
    {"store": False, "input": [{"type": "item_reference", "id": "x"}]},
    {"store": False, "input": [{"type": "compaction", "encrypted_content": "x"}]},
    {"store": False, "background": True},
    {"store": False, "context_management": [{}]},
    {"store": False, "tools": [TOOL, {"type": "web_search"}]},
    {"store": False, "tools": [{}]},
    {"store": False, "tools": "f"},
    {"store": False, "input": [{"type": "additional_tools", "role": "developer", "tools": []}]},
    {"store": False, "input": [{"type": "custom_tool_call_output", "call_id": "c", "output": ""}]},
    {"store": False, "input": [7]},
    {"store": False, "include": ["reasoning.encrypted_content"]},
]


@pytest.mark.parametrize(("fields", "expected"), [(f, True) for f in STATELESS] + [(f, False) for f in STATEFUL])
def test_a_request_is_stateless_only_if_it_needs_nothing_of_ours(fields: dict[str, object], expected: bool) -> None:
    assert is_stateless(read_fields(msgspec.json.encode({"model": "m", "input": "hi"} | fields))) is expected


def _known_fields() -> tuple[str, ...]:
    return Known.__struct_fields__
