"""Clients under whose requests things are killed, and what each of them was told: their own model of the history.

A turn counts as acknowledged when the client has read that it is completed. What a turn must hold then is known to the byte.
"""

import asyncio
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import aiohttp

from tests.fakes.answers import Json
from tests.fakes.streams import StreamFault, check_response, check_stream, read_sse

TOOL: Json = {"type": "function", "name": "lookup", "parameters": {"type": "object"}}
LOST = "previous_response_not_found"
PAUSE_SECONDS = 0.05

Line = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn that its client knows to be completed: the response as it came, what it was given, and all that a continuation must see."""

    response: Json
    given: Line
    line: Line

    @property
    def id(self) -> str:
        return str(self.response["id"])

    @property
    def open_calls(self) -> list[str]:
        output = self.response["output"]
        assert isinstance(output, list)
        return [str(item["call_id"]) for item in output if item["type"] == "function_call"]


@dataclass(slots=True)
class Book:
    """What all clients know together."""

    turns: dict[str, Turn] = field(default_factory=dict)
    errors: int = 0
    unknown: int = 0
    faults: list[str] = field(default_factory=list)


def said_in(items: object) -> Line:
    """A line of items in short: texts, names of calls, outputs."""
    assert isinstance(items, list)
    return tuple(word for item in items for word in _words(item))


def _words(item: Json) -> Iterator[str]:
    content = item.get("content", item.get("output", item.get("name")))
    if isinstance(content, str):
        yield f"{item.get('role') or item['type']}: {content}"
    else:
        assert isinstance(content, list)
        yield f"{item['role']}: {''.join(str(part['text']) for part in content)}"


class Client:
    """One caller with one line of turns, and sometimes a branch."""

    def __init__(self, number: int, url: str, book: Book, chance: random.Random) -> None:
        self.number = number
        self.tip: Turn | None = None
        self.acknowledged = 0
        self._url = url
        self._book = book
        self._chance = chance
        self._mine: list[Turn] = []
        self._asked = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Asks for one turn after the other until it is told to stop."""
        timeout = aiohttp.ClientTimeout(total=40, sock_connect=5)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            while not stop.is_set():
                if not await self._turn(http):
                    self._book.errors += 1
                    await asyncio.sleep(PAUSE_SECONDS)

    async def _turn(self, http: aiohttp.ClientSession) -> bool:
        parent = self.tip if not self._mine or self._chance.random() > 0.15 else self._chance.choice(self._mine)
        items = self._items_after(parent)
        body: Json = {"model": "m", "input": items, "tools": [TOOL], "previous_response_id": parent.id if parent else None}
        streaming = self._chance.random() < 0.5
        try:
            response = await (self._streamed if streaming else self._plain)(http, body)
        except (aiohttp.ClientError, OSError, TimeoutError):
            self._book.unknown += 1
            return False
        if response is None or response["status"] != "completed":
            return False
        self._note(parent, items, response)
        return True

    def _items_after(self, parent: Turn | None) -> list[Json]:
        self._asked += 1
        outputs: list[Json] = []
        if parent is not None:
            outputs = [{"type": "function_call_output", "call_id": call, "output": f"found {self._asked}"} for call in parent.open_calls]
        wish = "please lookup" if self._chance.random() < 0.2 else "say"
        return [*outputs, {"role": "user", "content": f"{wish} {self.number}.{self._asked}"}]

    async def _plain(self, http: aiohttp.ClientSession, body: Json) -> Json | None:
        async with http.post(f"{self._url}/v1/responses", json=body) as answer:
            read = await answer.json(content_type=None)
            return self._judged(answer.status, body, read)

    async def _streamed(self, http: aiohttp.ClientSession, body: Json) -> Json | None:
        async with http.post(f"{self._url}/v1/responses", json=body | {"stream": True}) as answer:
            if answer.status != 200:
                return self._judged(answer.status, body, await answer.json(content_type=None))
            raw = b""
            async for chunk in answer.content.iter_any():
                raw += chunk
                if b"event: response.completed" in raw and raw.endswith(b"\n\n"):
                    break  # as Codex does: the rest is not waited for
        return self._terminal(raw)

    def _terminal(self, raw: bytes) -> Json | None:
        if b"event: response.completed" not in raw:
            return None
        try:
            return check_stream(read_sse(raw, complete=False).events)
        except StreamFault as fault:
            self._book.faults.append(f"a stream that is not right: {fault}")
            return None

    def _judged(self, status: int, body: Json, read: Json) -> Json | None:
        if status == 200:
            return check_response(read)
        if LOST in json.dumps(read):
            self._book.faults.append(f"acknowledged and lost: {body['previous_response_id']}")
        elif status < 500:
            self._book.faults.append(f"refused with {status}: {read}")
        return None

    def _note(self, parent: Turn | None, items: list[Json], response: Json) -> None:
        given = (parent.line if parent else ()) + said_in(items)
        turn = Turn(response, given, given + said_in(response["output"]))
        self._book.turns[turn.id] = turn
        self._mine.append(turn)
        self.tip = turn
        self.acknowledged += 1
