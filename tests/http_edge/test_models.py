"""/v1/models: the engine's list, whole and by id."""

import pytest

from tests.http_edge.fake_services import House, chunk, head, playing

LISTED = b'{"object":"list","data":[{"id":"a", "n":1.0},{"id":"org/b c","x":12345678901234567890}],"extra":1}'


async def test_the_list_is_the_engines(house: House) -> None:
    house.orchestrator.relay = lambda request: playing(head(200, {"content-type": "application/json"}), chunk(LISTED))
    answer = await house.http.get("/v1/models")
    [asked] = house.orchestrator.relayed
    assert (asked.method, asked.path, asked.body) == ("GET", "/v1/models", b"")
    assert await answer.read() == LISTED


@pytest.mark.parametrize(("path", "entry"), [("a", b'{"id":"a", "n":1.0}'), ("org/b%20c", b'{"id":"org/b c","x":12345678901234567890}')])
async def test_one_model_is_its_entry_of_the_list(house: House, path: str, entry: bytes) -> None:
    house.orchestrator.relay = lambda request: playing(head(200), chunk(LISTED[:20]), chunk(LISTED[20:]))
    answer = await house.http.get(f"/v1/models/{path}")
    assert (answer.status, await answer.read()) == (200, entry)


async def test_a_model_that_is_not_in_the_list_is_not_found(house: House) -> None:
    house.orchestrator.relay = lambda request: playing(head(200), chunk(LISTED))
    answer = await house.http.get("/v1/models/z")
    assert answer.status == 404
    assert await answer.json() == {
        "error": {"message": "The model 'z' does not exist.", "type": "invalid_request_error", "param": "model", "code": "model_not_found"}
    }


async def test_an_error_of_the_engine_is_passed_on(house: House) -> None:
    house.orchestrator.relay = lambda request: playing(head(503, {"content-type": "text/plain"}), chunk(b"busy"))
    answer = await house.http.get("/v1/models/a")
    assert (answer.status, await answer.read()) == (503, b"busy")


@pytest.mark.parametrize("body", [b"", b"[]", b'{"data":3}', b'{"data":[{"name":"x"}]}', b"<html>"])
async def test_a_list_that_is_none_is_an_error_of_the_engine(house: House, body: bytes) -> None:
    house.orchestrator.relay = lambda request: playing(head(200), chunk(body))
    answer = await house.http.get("/v1/models/a")
    assert (answer.status, (await answer.json())["error"]["code"]) == (502, "engine_error")
