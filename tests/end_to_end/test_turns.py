"""Turns: what a client gets for one request, streamed or not."""

from tests.end_to_end.client import Client, text_of
from tests.fakes.engine import FakeEngine


async def test_a_question_is_answered(ada: Client, engine: FakeEngine) -> None:
    response = await ada.create("hello")

    assert text_of(response) == "You said: hello"


async def test_a_question_is_answered_as_a_stream(ada: Client, engine: FakeEngine) -> None:
    streamed = await ada.stream("hello")

    assert text_of(streamed.response) == "You said: hello"
