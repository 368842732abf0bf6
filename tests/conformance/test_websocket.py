"""Several turns on WebSockets: what a connection remembers of responses that are not stored, and what it forgets."""

from tests.conformance.talk import Server
from tests.end_to_end.client import text_of
from tests.fakes.answers import Json
from tests.fakes.engine import FakeEngine

NOT_FOUND = "previous_response_not_found"


def user(content: str) -> list[Json]:
    return [{"type": "message", "role": "user", "content": content}]


async def test_a_turn_over_a_websocket_has_the_events_of_a_stream(server: Server) -> None:
    """websocket-response"""
    over_socket = await server.by_socket(model="m", input=user("hello"))
    over_http = await server.streamed(model="m", input=user("hello"))
    assert text_of(over_socket.completed) == text_of(over_http.completed) == "You said: hello"
    assert [event["type"] for event in over_socket.events] == [event["type"] for event in over_http.events]


async def test_two_turns_on_one_connection_complete(server: Server) -> None:
    """websocket-sequential-responses: nothing of the first is left over for the second."""
    async with server.socket() as talk:
        texts = [text_of((await talk(model="m", input=user(said), store=False)).completed) for said in ("one", "two")]
    assert texts == ["You said: one", "You said: two"]


async def test_an_unstored_response_is_continued_on_its_connection(server: Server, engine: FakeEngine) -> None:
    """websocket-continuation"""
    async with server.socket() as talk:
        first = await talk(model="m", input=user("one"), store=False)
        second = await talk(model="m", input=user("two"), store=False, previous_response_id=first.completed["id"])
    assert text_of(second.completed) == "You said: two"
    assert [item["role"] for item in engine.posts[1].input] == ["user", "assistant", "user"]


async def test_another_connection_does_not_know_an_unstored_response_and_goes_on(server: Server) -> None:
    """websocket-reconnect-store-false-recovery"""
    first = await server.by_socket(model="m", input=user("one"), store=False)
    async with server.socket() as talk:
        second = await talk(model="m", input=user("two"), store=False, previous_response_id=first.completed["id"])
        third = await talk(model="m", input=user("three"), store=False)
    assert second.code == NOT_FOUND
    assert text_of(third.completed) == "You said: three"


async def test_an_unknown_response_is_not_found(server: Server) -> None:
    """websocket-previous-response-not-found: of our form, and of any other."""
    for unknown in (f"resp_{1:040x}", "resp_nonexistent", "x"):
        assert (await server.by_socket(model="m", input=user("one"), store=False, previous_response_id=unknown)).code == NOT_FOUND


async def test_a_continuation_that_fails_takes_its_parent_along(server: Server) -> None:
    """websocket-failed-continuation-evicts-cache"""
    stray = {"type": "function_call_output", "call_id": "call_unknown", "output": "4"}
    async with server.socket() as talk:
        parent = (await talk(model="m", input=user("one"), store=False)).completed["id"]
        failed = await talk(model="m", input=[stray], store=False, previous_response_id=parent)
        again = await talk(model="m", input=user("two"), store=False, previous_response_id=parent)
    assert failed.response is None or failed.response["status"] == "failed"
    assert again.code == NOT_FOUND
