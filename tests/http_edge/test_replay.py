"""A stored response as a stream: every item announced and done, every text once, and the end that its status has."""

import msgspec
import pytest

from http_edge.replay import events_of
from tests.http_edge.fake_services import RESPONSE_ID, response_object

PART = {"type": "output_text", "text": "Hi there", "annotations": [], "logprobs": [{"token": "Hi"}]}
REFUSAL = {"type": "refusal", "refusal": "No."}
MESSAGE = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [PART, REFUSAL]}
CALL = {"id": "fc_1", "type": "function_call", "status": "completed", "call_id": "c", "name": "f", "arguments": '{"a":1}'}
REASONING = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "x"}


def replayed(status: str, *output: object, **more: object) -> list[dict[str, object]]:
    response = response_object(RESPONSE_ID, status) | {"output": list(output), "usage": {"total_tokens": 3}, "completed_at": 2} | more
    events = events_of(msgspec.json.encode(response))
    bodies = [msgspec.json.decode(event.data) for event in events]
    assert [(event.type, event.sequence_number) for event in events] == [(body["type"], n) for n, body in enumerate(bodies)]
    return bodies


def test_every_item_is_announced_before_it_is_done_and_stands_in_its_place() -> None:
    events = replayed("completed", REASONING, MESSAGE, CALL)
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        *("output_item.added", "output_item.done"),
        "output_item.added",
        *("content_part.added", "output_text.delta", "output_text.done", "content_part.done"),
        *("content_part.added", "refusal.delta", "refusal.done", "content_part.done"),
        "output_item.done",
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == [REASONING, MESSAGE, CALL]
    assert [event["output_index"] for event in events if "output_index" in event] == [0] * 2 + [1] * 10 + [2] * 4


def test_the_deltas_are_the_text() -> None:
    events = replayed("completed", MESSAGE, CALL)
    assert [event["delta"] for event in events if event["type"].endswith(".delta")] == ["Hi there", "No.", '{"a":1}']
    assert [event["logprobs"] for event in events if "logprobs" in event] == [[{"token": "Hi"}]] * 2


def test_the_beginning_knows_nothing_of_the_end() -> None:
    created = replayed("incomplete", MESSAGE, incomplete_details={"reason": "max_output_tokens"})[0]["response"]
    assert created == response_object(RESPONSE_ID, "in_progress") | {"usage": None, "completed_at": None, "incomplete_details": None}


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed"])
def test_the_terminal_event_has_the_stored_response(status: str) -> None:
    *_, last = replayed(status, MESSAGE, error={"code": "c", "message": "m"})
    assert last["type"] == f"response.{status}"
    assert last["response"]["output"] == [MESSAGE]
    assert last["response"]["error"] == {"code": "c", "message": "m"}


def test_a_cancelled_response_has_no_terminal_event() -> None:
    assert [event["type"] for event in replayed("cancelled")] == ["response.created", "response.in_progress"]
