"""A stored response as a stream: judged like any other stream, with the end that its status has."""

import msgspec
import pytest

from http_edge.replay import events_of
from tests.fakes.streams import check_stream
from tests.http_edge.fake_services import RESPONSE_ID

CITATION = {"type": "url_citation", "title": "t", "url": "https://a.example", "start_index": 0, "end_index": 2}
PART = {"type": "output_text", "text": "Hi there", "annotations": [CITATION]}
REFUSAL = {"type": "refusal", "refusal": "No."}
MESSAGE = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [PART, REFUSAL]}
CALL = {"id": "fc_1", "type": "function_call", "status": "completed", "call_id": "c", "name": "f", "arguments": '{"a":1}'}
CUSTOM = {"id": "ctc_1", "type": "custom_tool_call", "status": "completed", "call_id": "d", "name": "g", "input": "x\n y"}
REASONING = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "So."}, {"type": "summary_text", "text": "Then."}],
    "content": [{"type": "reasoning_text", "text": "I think."}],
}
OPAQUE = {"id": "rs_2", "type": "reasoning", "summary": [], "encrypted_content": "x"}
SEARCH = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}}
LISTING = {"id": "mcpl_1", "type": "mcp_list_tools", "server_label": "s", "tools": [{"name": "t", "input_schema": {}}]}
MCP = {"id": "mcp_1", "type": "mcp_call", "status": "completed", "server_label": "s", "name": "t", "arguments": "{}", "output": "o"}
ASKING = {"id": "mcpr_1", "type": "mcp_approval_request", "server_label": "s", "name": "t", "arguments": "{}"}
COMPACTION = {"id": "cmp_1", "type": "compaction", "encrypted_content": "x"}
EVERY_KIND = (REASONING, OPAQUE, SEARCH, LISTING, MCP, ASKING, COMPACTION, MESSAGE, CALL, CUSTOM)
USAGE = {
    "input_tokens": 1,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 2,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 3,
}


def whole(status: str, *output: object, **more: object) -> dict[str, object]:
    """A response object with all that one must have."""
    return {
        "id": RESPONSE_ID,
        "object": "response",
        "created_at": 1,
        "status": status,
        "model": "m",
        "output": list(output),
        "completed_at": 2 if status == "completed" else None,
        "incomplete_details": None,
        "error": None,
        "usage": USAGE,
        "previous_response_id": None,
        "instructions": None,
        "tools": [],
        "tool_choice": "auto",
        "truncation": "disabled",
        "parallel_tool_calls": True,
        "text": {"format": {"type": "text"}},
        "top_p": 1.0,
        "temperature": 1.0,
        "top_logprobs": 0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "reasoning": {"effort": None, "summary": None},
        "store": True,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "background": False,
        "service_tier": "default",
        "metadata": {},
        "safety_identifier": None,
        "prompt_cache_key": None,
        **more,
    }


def replayed(response: dict[str, object]) -> list[dict[str, object]]:
    events = events_of(msgspec.json.encode(response))
    bodies = [msgspec.json.decode(event.data) for event in events]
    assert [(event.type, event.sequence_number) for event in events] == [(body["type"], n) for n, body in enumerate(bodies)]
    return bodies


def test_every_kind_of_item_is_replayed_as_it_is_made() -> None:
    response = whole("completed", *EVERY_KIND)
    assert check_stream(replayed(response)) == response


@pytest.mark.parametrize(
    "item",
    [
        SEARCH | {"status": "failed"},
        MCP | {"status": "failed", "error": {"type": "mcp_tool_execution_error", "content": []}},
        MCP | {"status": "incomplete"},
        LISTING | {"tools": [], "error": "it is away"},
        CALL | {"status": "incomplete", "arguments": ""},
        MESSAGE | {"status": "incomplete", "content": []},
        MESSAGE | {"status": "incomplete", "content": [{"type": "output_text", "text": "", "annotations": []}]},
    ],
    ids=range(7),
)
def test_what_failed_or_was_cut_is_replayed_too(item: dict[str, object]) -> None:
    response = whole("incomplete", item, incomplete_details={"reason": "max_output_tokens"})
    assert check_stream(replayed(response)) == response


def test_an_item_of_a_kind_that_nobody_here_knows_is_announced_as_it_is() -> None:
    odd = {"id": "x_1", "type": "hologram", "status": "completed", "content": "light"}
    unknown_part = MESSAGE | {"content": [{"type": "output_smell", "smell": "rose"}]}
    events = replayed(whole("completed", odd, unknown_part))
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == [odd, unknown_part]
    assert next(event["item"] for event in events if event["type"] == "response.output_item.added") == odd


def test_the_deltas_are_the_text_and_keep_its_logprobs() -> None:
    part = {"type": "output_text", "text": "Hi", "annotations": [], "logprobs": [{"token": "Hi"}]}
    events = replayed(whole("completed", MESSAGE | {"content": [part]}, CALL))
    assert [event["delta"] for event in events if event["type"].endswith(".delta")] == ["Hi", '{"a":1}']
    assert [event["logprobs"] for event in events if "logprobs" in event] == [[{"token": "Hi"}]] * 2


def test_the_beginning_knows_nothing_of_the_end() -> None:
    response = whole("incomplete", MESSAGE, incomplete_details={"reason": "max_output_tokens"})
    created, in_progress, *_ = replayed(response)
    assert created["response"] == in_progress["response"] == whole("in_progress", usage=None)


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed"])
def test_the_terminal_event_has_the_stored_response(status: str) -> None:
    response = whole(status, MESSAGE, error={"code": "c", "message": "m"})
    *_, last = replayed(response)
    assert (last["type"], last["response"]) == (f"response.{status}", response)


def test_a_cancelled_response_has_no_terminal_event() -> None:
    assert [event["type"] for event in replayed(whole("cancelled"))] == ["response.created", "response.in_progress"]
