"""What a compaction makes of a context: which messages stay, which calls wait, and that no call is ever parted from its output."""

from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator_svc.context.compaction import DROPPED_MARKER, SUMMARY_HEADER, kept_messages, parted, window_of, without_oldest
from orchestrator_svc.items import JsonObject, make, make_standing_for, tokens_of
from tests.fakes.strict import refusal


def message(said: str, role: str = "user") -> JsonObject:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": said}]}


def call(call_id: str) -> JsonObject:
    return {"type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}"}


def output(call_id: str) -> JsonObject:
    return {"type": "function_call_output", "call_id": call_id, "output": "seen"}


def texts(elements: list[JsonObject]) -> list[str]:
    return [str(cast(list[JsonObject], element["content"])[0]["text"]) for element in elements]


def window(elements: list[JsonObject], *open_call_ids: str, budget: int = 10_000) -> list[JsonObject]:
    decoded: list[JsonObject] = msgspec.json.decode(b"[%b]" % window_of(elements, "so far", open_call_ids, budget, with_messages=True))
    return decoded


SUMMARY = message(SUMMARY_HEADER + "so far")
EACH = tokens_of(message("0"))


def test_the_messages_of_the_user_stay_and_the_summary_follows_them() -> None:
    context = [message("be kind", "developer"), message("one"), message("answer", "assistant"), call("a"), output("a"), message("two")]
    assert window(context) == [message("be kind", "developer"), message("one"), message("two"), SUMMARY]


@pytest.mark.parametrize("fit", [1, 2, 5])
def test_the_newest_messages_that_fit_stay(fit: int) -> None:
    context = [message(str(number)) for number in range(5)]
    assert texts(kept_messages(context, fit * EACH)) == ["0", "1", "2", "3", "4"][-fit:]


def test_the_newest_message_stays_whatever_its_size() -> None:
    assert kept_messages([message("old"), message("x" * 1000)], 10) == [message("x" * 1000)]


def test_an_older_message_does_not_jump_over_one_that_is_too_large() -> None:
    assert kept_messages([message("small"), message("x" * 1000), message("new")], 60) == [message("new")]


def test_an_image_costs_what_an_image_costs_and_not_its_bytes() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 100_000, "detail": "auto"}
    picture: JsonObject = {"type": "message", "role": "user", "content": [image]}

    assert kept_messages([message("look"), picture, message("well?")], 2000) == [message("look"), picture, message("well?")]
    item = make_standing_for("cmp_1", {"type": "compaction"}, msgspec.json.encode(picture))
    assert item.tokens == make("msg_1", picture).tokens < 2000


def test_a_summary_of_earlier_times_is_summed_up_and_not_kept() -> None:
    context = [message("one"), message(SUMMARY_HEADER + "before"), message("two")]
    assert window(context) == [message("one"), message("two"), SUMMARY]


def test_a_call_that_waits_stays_behind_the_summary() -> None:
    """B089."""
    context = [message("one"), call("a"), output("a"), call("b"), call("c")]
    assert window(context, "b", "c") == [message("one"), SUMMARY, call("b"), call("c")]


def test_of_calls_with_one_id_the_last_waits() -> None:
    """Engines count their calls anew in each request, and clients may send what they like."""
    context = [call("a"), output("a"), message("again"), call("a")]
    assert window(context, "a") == [message("again"), SUMMARY, call("a")]
    assert parted(context, ["a"]) == (context[:3], [call("a")])


# The oldest turns are left out.


def test_the_oldest_turns_give_way_to_a_marker() -> None:
    context = [message("be kind", "system"), message("1"), message("a", "assistant"), message("2"), message("b", "assistant")]
    assert without_oldest(context, 3 * EACH + 10) == [context[0], message(DROPPED_MARKER), *context[3:]]
    assert without_oldest(context, 10_000) == context


def test_the_last_turn_stays_whatever_its_size() -> None:
    last = [message("x" * 1000), call("a"), output("a")]
    assert without_oldest([message("1"), *last], 1) == [message(DROPPED_MARKER), *last]


def test_a_context_without_a_user_is_one_turn() -> None:
    context = [message("be kind", "system"), message("well", "assistant"), call("a"), output("a")]
    assert without_oldest(context, 1) == context


def test_a_message_between_a_call_and_its_output_parts_no_turns() -> None:
    """B091."""
    context = [message("1"), call("a"), message("hurry"), output("a"), message("2")]
    for budget in range(0, 300, 7):
        kept = without_oldest(context, budget)
        assert refused(kept) is None
        assert kept in (context, [message(DROPPED_MARKER), message("2")])


@st.composite
def contexts(draw: st.DrawFn) -> tuple[list[JsonObject], list[str]]:
    """A context whose calls have their outputs somewhere behind them, but for some at its end."""
    elements: list[JsonObject] = []
    waiting: list[str] = []
    for number in range(draw(st.integers(0, 30))):
        step = draw(st.sampled_from(["user", "developer", "assistant", "call", "output"]))
        if step == "call":
            waiting.append(f"call_{number}")
            elements.append(call(waiting[-1]))
        elif step == "output" and waiting:
            elements.append(output(waiting.pop(draw(st.integers(0, len(waiting) - 1)))))
        elif step != "output":
            elements.append(message(draw(st.text(max_size=40)) or "x", step))
    return elements, waiting


@given(contexts(), st.integers(0, 800))
def test_no_window_parts_a_call_from_its_output(context: tuple[list[JsonObject], list[str]], budget: int) -> None:
    """B091."""
    elements, waiting = context
    answered = [output(call_id) for call_id in waiting]

    assert refused([*window(elements, *waiting, budget=budget), *answered]) is None
    assert refused(without_oldest([*elements, *answered], budget) or [message("x")]) is None
    assert refused(parted(elements, waiting)[0] or [message("x")]) is None


def refused(elements: list[JsonObject]) -> str | None:
    """Why a strict engine would not take this input."""
    body = msgspec.json.encode({"model": "m", "store": False, "input": elements})
    return refusal("/v1/responses", body, frozenset())
