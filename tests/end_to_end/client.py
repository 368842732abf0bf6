"""A client of the Responses API that believes nothing: every stream, response, list and error is checked before a test sees it.

What is stored is compared with what was answered: GET of a stored response equals its terminal response.
"""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import aiohttp

from tests.fakes.answers import Json
from tests.fakes.streams import Sse, check_item_list, check_response, check_stream, check_writes, normalised, read_writes

KINDS = ("invalid_request_error", "rate_limit_error", "server_error")


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Json:
        return cast(Json, json.loads(self.body.decode("utf-8")))


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error answer whose shape is right."""

    status: int
    code: str | None
    param: str | None
    message: str
    headers: Mapping[str, str]

    @property
    def said(self) -> tuple[int, str | None, str | None]:
        """Status, code and param: what a test compares."""
        return self.status, self.code, self.param


@dataclass(frozen=True, slots=True)
class Streamed:
    """A whole stream, checked, and its terminal response."""

    response: Json
    sse: Sse

    def of_type(self, kind: str) -> list[Json]:
        return [event for event in self.sse.events if event["type"] == kind]


class Client:
    """One caller, with one API key."""

    def __init__(self, http: aiohttp.ClientSession, url: str, key: str) -> None:
        self.http = http
        self.url = url
        self.key = key

    async def request(
        self, method: str, path: str, body: Mapping[str, object] | bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """One request, whole."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        given = {"authorization": f"Bearer {self.key}", "content-type": "application/json", **(headers or {})}
        async with self.http.request(method, self.url + path, data=data, headers=given) as answer:
            return Reply(answer.status, answer.headers.copy(), await answer.read())

    async def create(self, input: object = None, **fields: object) -> Json:
        """A turn that is not streamed; its checked response."""
        reply = await self.request("POST", "/v1/responses", _body(input, fields))
        assert reply.status == 200, reply.body[:2000]
        assert reply.headers["Content-Type"].startswith("application/json")
        return await self._as_stored(check_response(reply.json))

    async def stream(self, input: object = None, **fields: object) -> Streamed:
        """A streamed turn, read to its end and checked, with its last response."""
        async with self.streaming(input, **fields) as answer:
            sse = check_writes(await read_writes(answer))
        return Streamed(await self._as_stored(check_stream(sse.events)), sse)

    @asynccontextmanager
    async def streaming(self, input: object = None, **fields: object) -> AsyncIterator[aiohttp.ClientResponse]:
        """A stream that has begun, for a test that reads it itself or leaves it."""
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        data = json.dumps(_body(input, {"stream": True, **fields})).encode()
        async with self.http.post(f"{self.url}/v1/responses", data=data, headers=headers) as answer:
            assert answer.status == 200, (await answer.read())[:2000]
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            yield answer

    async def refused(self, input: object = None, **fields: object) -> Refusal:
        """A turn that is refused, streamed or not, in the same words."""
        plain = refusal_of(await self.request("POST", "/v1/responses", _body(input, fields)))
        streamed = refusal_of(await self.request("POST", "/v1/responses", _body(input, {**fields, "stream": True})))
        assert plain.said == streamed.said
        return plain

    async def get(self, response_id: object) -> Json:
        """A stored response."""
        reply = await self.request("GET", f"/v1/responses/{response_id}")
        assert reply.status == 200, reply.body[:2000]
        return check_response(reply.json)

    async def is_stored(self, response_id: object) -> bool:
        """Whether GET finds it."""
        reply = await self.request("GET", f"/v1/responses/{response_id}")
        return reply.status == 200 or refusal_of(reply).said != (404, "response_not_found", None)

    async def delete(self, response_id: object) -> Json:
        """Deletes a response."""
        reply = await self.request("DELETE", f"/v1/responses/{response_id}")
        assert reply.status == 200, reply.body[:2000]
        return reply.json

    async def page(self, response_id: object, query: str = "") -> Json:
        """One page of input items, as a checked list object."""
        reply = await self.request("GET", f"/v1/responses/{response_id}/input_items{query}")
        assert reply.status == 200, reply.body[:2000]
        page = reply.json
        check_item_list(page)
        return page

    async def input_items(self, response_id: object, order: str = "asc", limit: int = 100) -> list[Json]:
        """All input items, page by page."""
        items: list[Json] = []
        after = ""
        while True:
            page = await self.page(response_id, f"?order={order}&limit={limit}{after}")
            items += cast(list[Json], page["data"])
            if not page["has_more"]:
                return items
            after = f"&after={page['last_id']}"

    async def _as_stored(self, response: Json) -> Json:
        reply = await self.request("GET", f"/v1/responses/{response['id']}")
        if response["store"] and not _is_lost(response):
            assert reply.status == 200, reply.body[:2000]
            assert check_response(reply.json) == response
        else:
            assert refusal_of(reply).said == (404, "response_not_found", None)
        return response


def _is_lost(response: Json) -> bool:
    """Whether the response says itself that it may not be stored."""
    error = response["error"]
    return isinstance(error, dict) and str(error["code"]).startswith("storage_")


def _body(input: object, fields: Mapping[str, object]) -> Json:
    return {"model": "m", **({} if input is None else {"input": input}), **fields}


def refusal_of(reply: Reply) -> Refusal:
    """The error that an answer holds, in OpenAI's shape and no other."""
    assert reply.status >= 400, reply.body[:2000]
    assert reply.headers["Content-Type"].startswith("application/json")
    assert set(reply.json) == {"error"}
    error = reply.json["error"]
    assert isinstance(error, dict)
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] in KINDS
    assert isinstance(error["message"], str)
    assert error["message"]
    return Refusal(reply.status, error["code"], error["param"], error["message"], reply.headers)


def same_but_for_ids(one: Json, other: Json) -> None:
    """Two runs of one script: equal but for ids and times."""
    assert normalised(one) == normalised(other)


def text_of(response: Json) -> str:
    """All text that a response says."""
    output = cast(list[Json], response["output"])
    parts = [part for item in output if item["type"] == "message" for part in cast(list[Json], item["content"])]
    return "".join(str(part.get("text", part.get("refusal"))) for part in parts)


def types_of(items: object) -> list[str]:
    """The types of items, in order."""
    return [str(item["type"]) for item in cast(list[Json], items)]
