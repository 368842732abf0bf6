"""Calls and outputs: a turn starts only when every call has its one output, behind it."""

import pytest

from orchestrator_svc.context.pairing import check_paired
from orchestrator_svc.errors import InvalidRequest
from orchestrator_svc.items import Item, make


def call(call_id: str) -> Item:
    return make("fc_1", {"type": "function_call", "status": "completed", "call_id": call_id, "name": "look", "arguments": "{}"})


def output(call_id: str) -> Item:
    return make("fco_1", {"type": "function_call_output", "status": "completed", "call_id": call_id, "output": ""})


HELLO = make("msg_1", {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]})


@pytest.mark.parametrize(
    ("open_calls", "input"),
    [
        ((), ()),
        ((), (HELLO,)),
        ((), (call("a"), output("a"))),
        ((), (call("a"), call("b"), HELLO, output("b"), output("a"))),
        (("a", "b"), (output("a"), output("b"), HELLO)),
        (("a",), (HELLO, output("a"), call("b"), output("b"))),
        ((), (call("a"), output("a"), call("a"), output("a"))),
    ],
)
def test_paired_calls_pass(open_calls: tuple[str, ...], input: tuple[Item, ...]) -> None:
    check_paired(open_calls, input)


@pytest.mark.parametrize(
    ("open_calls", "input", "named"),
    [
        (("a",), (), "a"),
        (("a", "b"), (output("a"),), "b"),
        (("a",), (HELLO,), "a"),
        ((), (call("a"), HELLO), "a"),
        ((), (output("a"),), "a"),
        ((), (output("a"), call("a")), "a"),
        (("a",), (output("a"), output("a")), "a"),
        (("a",), (call("a"), output("a")), "a"),
    ],
    ids=["open", "one of two", "a message instead", "a call alone", "an output alone", "the wrong way round", "twice", "called twice"],
)
def test_what_has_no_partner_is_named_b018(open_calls: tuple[str, ...], input: tuple[Item, ...], named: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_paired(open_calls, input)

    assert caught.value.param == "input"
    assert f" {named}." in caught.value.message
