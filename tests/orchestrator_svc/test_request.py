"""Requests: what a turn takes, what the engine gets, what the response echoes, and what is refused."""

import json

import pytest

from orchestrator_svc.errors import InvalidRequest, Unsupported
from orchestrator_svc.items import JsonObject
from orchestrator_svc.request import ECHO_DEFAULTS, NEVER_FORWARDED, ToolKinds, engine_fields, read_request
from tests.fakes.strict import refusal
from tests.orchestrator_svc.turns import HELLO, RULES, SPECS, WEATHER, asked, request

FIELDS: JsonObject = {
    "instructions": "Be short.",
    "temperature": 0.5,
    "top_p": 0.9,
    "top_logprobs": 2,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.2,
    "max_output_tokens": 100,
    "parallel_tool_calls": False,
    "reasoning": {"effort": "low"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}, "verbosity": "low"},
    "user": "ada",
}
HANDLED: JsonObject = {
    "store": True,
    "background": False,
    "metadata": {"a": "b"},
    "safety_identifier": "s",
    "service_tier": "auto",
    "truncation": "disabled",
    "max_tool_calls": 3,
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "client_metadata": {"a": "b"},
    "stream": True,
    "stream_options": {"include_obfuscation": False},
    "conversation": None,
    "context_management": None,
    "prompt": None,
}


def engine_body(
    given: JsonObject, *, include: set[str] | None = None, drop: set[str] | None = None, add: JsonObject | None = None
) -> JsonObject:
    read = request(HELLO, **given)
    tools = read.tools.declarations()
    fields = engine_fields(read, tools, read.tool_choice, include=frozenset(include or ()), drop=frozenset(drop or ()), add=add or {})
    body: JsonObject = json.loads(b"{" + fields + b"}")
    return body


def test_what_the_engine_needs_is_forwarded_b066() -> None:
    assert engine_body(FIELDS) == {"model": "m", "store": False, "stream": True} | FIELDS


def test_what_the_gateway_handles_is_never_forwarded_b021_b108() -> None:
    body = engine_body(FIELDS | HANDLED)

    assert body == {"model": "m", "store": False, "stream": True} | FIELDS
    assert refusal("/v1/responses", json.dumps(body | {"input": "hi"}).encode(), frozenset()) is None
    assert not body.keys() & (NEVER_FORWARDED - {"model", "store", "stream"})


def test_a_field_that_nobody_here_knows_is_forwarded_and_not_echoed() -> None:
    read = request(HELLO, min_p=0.1, chat_template_kwargs={"thinking": None})

    assert read.forwarded == {"min_p": 0.1, "chat_template_kwargs": {"thinking": None}}
    assert not read.echo.keys() & {"min_p", "chat_template_kwargs"}


def test_nulls_are_as_good_as_nothing() -> None:
    fields = [*FIELDS, *HANDLED, "tools", "tool_choice", "include"]

    assert engine_body(dict.fromkeys(fields)) == {"model": "m", "store": False, "stream": True}
    assert request(HELLO, **dict.fromkeys(fields)).echo == ECHO_DEFAULTS


def test_nulls_in_tools_are_dropped() -> None:
    tool = WEATHER | {"description": None, "strict": None, "parameters": {"type": "object", "default": None}}

    assert engine_body({"tools": [tool]})["tools"] == [WEATHER | {"parameters": {"type": "object", "default": None}}]


def test_a_provider_may_know_include_values_and_drop_or_add_fields() -> None:
    given: JsonObject = {"include": ["b", "a", "c"], "temperature": 0.5, "top_p": 0.9}

    body = engine_body(given, include={"a", "b"}, drop={"top_p"}, add={"top_k": 5, "temperature": 1})

    assert body == {"model": "m", "include": ["a", "b"], "temperature": 1, "top_k": 5, "store": False, "stream": True}


def test_what_was_asked_for_is_echoed_b007_b035_b108() -> None:
    read = request(HELLO, tools=[WEATHER], tool_choice="required", **FIELDS, **HANDLED)
    text = {"verbosity": "low", "format": {"description": None} | FIELDS["text"]["format"]}  # type: ignore[index]

    assert read.echo == ECHO_DEFAULTS | FIELDS | {
        "tools": [WEATHER | {"description": None, "strict": None}],
        "tool_choice": "required",
        "text": text,
        "reasoning": {"effort": "low", "summary": None},
        "metadata": {"a": "b"},
        "safety_identifier": "s",
        "service_tier": "default",
        "max_tool_calls": 3,
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
    }


def test_the_secrets_of_a_tool_are_not_echoed() -> None:
    server = {
        "type": "mcp",
        "server_label": "x",
        "server_url": "https://ada:planted@x.test/mcp?key=planted",
        "authorization": "planted",
        "headers": {"x-key": "planted"},
    }
    read = request(HELLO, tools=[server])

    assert read.echo["tools"] == [{"type": "mcp", "server_label": "x", "server_url": "https://x.test/mcp"}]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"context_management": [{"type": "clearing"}]}, "context_management[0].type"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"tools": [WEATHER, {"type": "code_interpreter"}]}, "tools[1].type"),
        ({"tools": [{"type": None}]}, "tools[0].type"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_what_this_build_does_not_support_is_refused_by_its_name(given: JsonObject, param: str) -> None:
    with pytest.raises(Unsupported) as caught:
        request(HELLO, **given)

    assert caught.value.param == param


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"max_output_tokens": "many"}, "max_output_tokens"),
        ({"instructions": 5}, "instructions"),
        ({"tools": {}}, "tools"),
        ({"tools": ["weather"]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": ""}]}, "tools[0].name"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1]"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "clock"}, "tools": [WEATHER]}, "tool_choice"),
        ({"tool_choice": {"type": "code_interpreter"}}, "tool_choice"),
        ({"include": "all"}, "include"),
        ({"text": "json"}, "text"),
        ({"reasoning": "low"}, "reasoning"),
    ],
)
def test_what_is_wrong_is_named(given: JsonObject, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request(HELLO, **given)

    assert caught.value.param == param


@pytest.mark.parametrize("choice", [None, "none", "auto", "required", {"type": "function", "name": "weather"}])
def test_a_choice_among_the_tools_is_taken(choice: object) -> None:
    assert request(HELLO, tools=[WEATHER], tool_choice=choice).tools.forced_choice() == choice


@pytest.mark.parametrize("parameters", [b"{", b"[]", b"5", b'{"a":' * 5000 + b"1" + b"}" * 5000], ids=["half", "list", "number", "deep"])
def test_parameters_that_are_no_object_are_refused(parameters: bytes) -> None:
    given = asked(HELLO)
    with pytest.raises(InvalidRequest):
        read_request(type(given)("ada", "m", None, True, given.input, parameters), ToolKinds(SPECS), RULES, str)


def test_a_model_is_needed() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_request(type(asked())("ada", "", None, True, asked(HELLO).input, b"{}"), ToolKinds(SPECS), RULES, str)

    assert caught.value.param == "model"


def test_an_input_is_needed_where_there_is_nothing_to_continue_from_b013() -> None:
    with pytest.raises(InvalidRequest) as caught:
        request()

    assert caught.value.param == "input"
    assert request(previous_response_id="resp_1").input == ()


def test_half_a_pair_in_the_parameters_is_replaced_b135() -> None:
    given = asked(HELLO)
    parameters = b'{"instructions":"\\ud83d","metadata":{"a":"\\ud83d\\ude00\\ud83d"}}'
    read = read_request(type(given)("ada", "m", None, True, given.input, parameters), ToolKinds(SPECS), RULES, str)

    assert read.forwarded == {"instructions": "\ufffd"}
    assert read.echo["metadata"] == {"a": "\U0001f600\ufffd"}
