"""The three ways to ask for a turn, and the checks that every answer goes through. What a test asks for does not change with the way."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol, cast

import aiohttp

from tests.conformance.closed import check, check_event
from tests.fakes.answers import Json
from tests.fakes.streams import TERMINAL, check_response, check_stream, check_writes, read_writes

PATIENCE = 20.0


@dataclass(frozen=True, slots=True)
class Said:
    """What came back: the events, if any, and the last response object, or the error that stands for it."""

    events: list[Json] = field(default_factory=list)
    response: Json | None = None
    error: Json | None = None

    @property
    def completed(self) -> Json:
        """The response, which must be completed and have output."""
        assert self.response is not None, self.error
        assert self.response["status"] == "completed"
        assert self.response["output"]
        return self.response

    @property
    def code(self) -> object:
        """The code of what went wrong, wherever it stands."""
        fault = self.error or cast(Json, self.response)["error"]
        return cast(Json, fault)["code"]


class Talk(Protocol):
    """One way to ask for a turn."""

    async def __call__(self, **request: object) -> Said: ...


@dataclass(frozen=True, slots=True)
class Server:
    """A gateway, and a client's key for it."""

    http: aiohttp.ClientSession
    url: str
    key: str

    async def plain(self, **request: object) -> Said:
        """POST without `stream`."""
        status, body = await self.post("/v1/responses", request)
        assert status == 200, body
        return Said(response=_checked(body))

    async def streamed(self, **request: object) -> Said:
        """POST with `stream: true`."""
        async with self.http.post(f"{self.url}/v1/responses", json={**request, "stream": True}, headers=self._headers) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            return _of_events(list(check_writes(await read_writes(answer)).events))

    async def by_socket(self, **request: object) -> Said:
        """A frame on a WebSocket of its own."""
        async with self.socket() as talk:
            return await talk(**request)

    @asynccontextmanager
    async def socket(self) -> AsyncIterator[Talk]:
        """A WebSocket for several turns, one after another."""
        async with self.http.ws_connect(f"{self.url}/v1/responses", headers=self._headers) as websocket:

            async def talk(**request: object) -> Said:
                await websocket.send_json({"type": "response.create", **request})
                return await _read(websocket)

            yield talk

    async def post(self, path: str, body: Json) -> tuple[int, Json]:
        """Any other request: its status and its JSON."""
        async with self.http.post(self.url + path, json=body, headers=self._headers) as answer:
            assert answer.headers["Content-Type"].startswith("application/json")
            return answer.status, await answer.json()

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}


async def _read(websocket: aiohttp.ClientWebSocketResponse) -> Said:
    """All frames up to the one that ends a turn."""
    events: list[Json] = []
    while True:
        frame = cast(Json, json.loads(await websocket.receive_str(timeout=PATIENCE)))
        if frame["type"] == "error":
            check("WebSocketErrorEvent", frame)
            return Said(events, error=cast(Json, frame["error"]))
        events.append(frame)
        if frame["type"] in TERMINAL:
            return _of_events(events)


def _of_events(events: list[Json]) -> Said:
    assert events
    for event in events:
        check_event(event)
    return Said(events, response=_checked(check_stream(events)))


def _checked(response: Json) -> Json:
    return check("ResponseResource", check_response(response))
