"""Strict mode takes the neutral prompt form, and refuses each shape that a real engine refuses or loses."""

import json

import aiohttp
import pytest

from tests.fakes.engine import FakeEngine
from tests.fakes.scripts import function_call, reasoning, text
from tests.fakes.strict import refusal

USER = {"type": "message", "role": "user", "content": "hi"}
ANSWER = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes", "annotations": []}]}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"q": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "found"}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}


def why(**fields: object) -> str | None:
    return refusal("/v1/responses", json.dumps({"model": "m", "store": False, "input": [USER]} | fields).encode(), {"msg_ours"})


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "just text"},
        {"input": [USER, THOUGHT, CALL, OUTPUT, ANSWER, USER]},
        {"input": [USER, CALL, CALL | {"call_id": "c2"}, OUTPUT | {"call_id": "c2"}, OUTPUT]},
        {"input": [USER | {"content": [{"type": "input_text", "text": "see"}, IMAGE]}]},
        {"input": [CALL, OUTPUT | {"output": [{"type": "input_text", "text": "a"}, IMAGE]}]},
        {"input": [USER, ANSWER | {"id": "msg_ours", "status": "completed"}]},
        {"tools": [TOOL], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "name": "look"}, "parallel_tool_calls": False},
        {"include": ["reasoning.encrypted_content"], "temperature": 0, "max_output_tokens": 5, "text": {"format": {"type": "text"}}},
        {"stream": True, "stream_options": {"include_obfuscation": False}, "instructions": "be good"},
    ],
)
def test_the_neutral_form_is_taken(fields: dict[str, object]) -> None:
    assert why(**fields) is None


@pytest.mark.parametrize(
    ("where", "fields"),
    [
        ("store", {"store": True}),
        *(
            (name, {name: value})
            for name, value in {
                "background": True,
                "previous_response_id": "resp_1",
                "conversation": "conv_1",
                "context_management": [],
                "client_metadata": {},
                "metadata": {},
                "safety_identifier": "s",
                "service_tier": "auto",
                "truncation": "auto",
                "max_tool_calls": 3,
                "invented": 1,
            }.items()
        ),
        ("include", {"include": ["invented"]}),
        ("model", {"model": None}),
        ("max_output_tokens", {"max_output_tokens": 0}),
        ("temperature", {"temperature": "hot"}),
        ("stream_options", {"stream_options": {}}),
        ("tools[0].type", {"tools": [{"type": "web_search"}]}),
        ("tools[0].type", {"tools": [{"type": "custom", "name": "patch"}]}),
        ("tools[0].strict", {"tools": [TOOL | {"strict": None}]}),
        ("tools[0].description", {"tools": [TOOL | {"description": None}]}),
        ("tools[0].name", {"tools": [TOOL | {"name": "crm.look"}]}),
        ("tools[0].name", {"tools": [TOOL | {"name": "x" * 65}]}),
        ("tools[1].name", {"tools": [TOOL, TOOL]}),
        ("tools[0].defer_loading", {"tools": [TOOL | {"defer_loading": True}]}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tools": [TOOL], "tool_choice": {"type": "function", "name": "other"}}),
        ("tool_choice", {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "tools": []}}),
        ("input", {"input": []}),
        ("input", {"input": None}),
        ("input[0].type", {"input": [{"role": "user", "content": "hi"}]}),
        ("input[0].type", {"input": [{"role": "assistant", "content": "hi"}]}),
        *(
            ("input[0].type", {"input": [{"type": kind}]})
            for kind in ("custom_tool_call", "web_search_call", "mcp_call", "mcp_list_tools", "compaction", "item_reference", "invented")
        ),
        ("input[0].id", {"input": [ANSWER | {"id": None}]}),
        ("input[0].id", {"input": [ANSWER | {"id": "msg_foreign"}]}),
        ("input: duplicate", {"input": [ANSWER | {"id": "msg_ours"}, USER, ANSWER | {"id": "msg_ours"}]}),
        ("input[0].status", {"input": [ANSWER | {"status": None}]}),
        ("input[0].status", {"input": [ANSWER | {"status": "sent"}]}),
        ("input[0].phase", {"input": [ANSWER | {"phase": "final_answer"}]}),
        ("input[0].role", {"input": [USER | {"role": "tool"}]}),
        ("input[0].content", {"input": [ANSWER | {"content": "yes"}]}),
        ("input[0].content", {"input": [ANSWER | {"content": []}]}),
        ("input[0].content", {"input": [ANSWER | {"content": ANSWER["content"] * 2}]}),  # type: ignore[operator]
        ("input[0].content[0].type", {"input": [ANSWER | {"content": [{"type": "refusal", "refusal": "no"}]}]}),
        ("input[0].content[0].logprobs", {"input": [ANSWER | {"content": [{"type": "output_text", "text": "a", "logprobs": None}]}]}),
        ("input[0].content[0].type", {"input": [USER | {"content": [{"type": "input_file", "file_id": "f"}]}]}),
        ("input[0].content[0].detail", {"input": [USER | {"content": [{"type": "input_image", "image_url": "u"}]}]}),
        ("input[0].content[0].detail", {"input": [USER | {"content": [IMAGE | {"detail": "original"}]}]}),
        ("input[0].summary", {"input": [{"type": "reasoning", "content": THOUGHT["content"]}]}),
        ("input[0].content", {"input": [{"type": "reasoning", "summary": []}]}),
        ("input[0].content", {"input": [THOUGHT | {"content": None}]}),
        ("input[0].content", {"input": [THOUGHT | {"content": []}]}),
        ("input[0].content", {"input": [THOUGHT | {"content": THOUGHT["content"] * 2}]}),  # type: ignore[operator]
        ("input[0].encrypted_content", {"input": [THOUGHT | {"encrypted_content": "xyz"}]}),
        ("input: no output", {"input": [USER, CALL]}),
        ("input: no call", {"input": [USER, OUTPUT]}),
        ("input: the output", {"input": [OUTPUT, CALL]}),
        ("input: two calls", {"input": [CALL, CALL, OUTPUT]}),
        ("input: two outputs", {"input": [CALL, OUTPUT, OUTPUT]}),
        ("input[0].arguments", {"input": [CALL | {"arguments": '{"q": '}, OUTPUT]}),
        ("input[0].arguments", {"input": [CALL | {"arguments": {"q": 1}}, OUTPUT]}),
        ("input[0].arguments", {"input": [CALL | {"arguments": "3"}, OUTPUT]}),
        ("input[0].name", {"input": [CALL | {"name": "a b"}, OUTPUT]}),
        ("input[0].namespace", {"input": [CALL | {"namespace": "crm"}, OUTPUT]}),
        ("input[0].call_id", {"input": [CALL | {"call_id": "c" * 65}]}),
        ("input[1].output", {"input": [CALL, OUTPUT | {"output": None}]}),
        ("input[1].output[0].detail", {"input": [CALL, OUTPUT | {"output": [{"type": "input_image", "image_url": "u"}]}]}),
    ],
)
def test_what_engines_refuse_or_lose_is_refused_by_place(where: str, fields: dict[str, object]) -> None:
    reason = why(**fields)
    assert reason is not None
    assert reason.startswith(where)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": "\xff"}', b'{"model": "\\ud800"}'])
def test_a_body_that_is_no_clean_json_object_is_refused(body: bytes) -> None:
    assert refusal("/v1/responses", body, set()) is not None


def test_a_field_can_be_made_known() -> None:
    body = json.dumps({"model": "m", "store": False, "input": "x", "invented": 1}).encode()
    assert refusal("/v1/responses", body, set(), {"invented"}) is None


def chat(*messages: dict[str, object]) -> str | None:
    return refusal("/v1/chat/completions", json.dumps({"model": "m", "messages": messages}).encode(), set())


def test_chat_messages_are_checked_for_pairs() -> None:
    asks: dict[str, object] = {"role": "user", "content": "x"}
    calls: dict[str, object] = {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": "{}"}}]}
    tells: dict[str, object] = {"role": "tool", "tool_call_id": "c1", "content": "found"}
    assert chat(asks, calls, tells) is None
    assert chat() is not None
    assert chat(asks, calls) is not None
    assert chat(asks, tells) is not None
    assert chat(asks, calls, tells, tells) is not None


async def test_the_engine_answers_400_and_keeps_its_script_for_the_next_request() -> None:
    async with FakeEngine(strict=True) as engine, aiohttp.ClientSession() as client:
        engine.play(text("kept"))
        async with client.post(engine.url + "/v1/responses", json={"model": "m", "input": "x"}) as answer:
            assert answer.status == 400
            error = (await answer.json())["error"]
        assert error["message"] == engine.posts[0].refused
        assert (error["code"], error["param"]) == (400, None)
        async with client.post(engine.url + "/v1/responses", json={"model": "m", "input": "x", "store": False}) as answer:
            assert "kept" in await answer.text()
        assert engine.posts[1].refused is None


async def test_ids_that_the_engine_made_come_back_and_others_do_not() -> None:
    async with FakeEngine(strict=True) as engine, aiohttp.ClientSession() as client:
        engine.play(reasoning("hm") + function_call("look", {}))
        async with client.post(engine.url + "/v1/responses", json={"model": "m", "input": "x", "store": False}) as answer:
            call = (await answer.json())["output"][1]
        del call["namespace"]
        told = {"type": "function_call_output", "call_id": call["call_id"], "output": "y"}
        for item, status in ((call, 200), (call | {"id": "fc_other"}, 400)):
            async with client.post(engine.url + "/v1/responses", json={"model": "m", "input": [item, told], "store": False}) as answer:
                assert answer.status == status
