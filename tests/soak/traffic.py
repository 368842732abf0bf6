"""The callers of a soak: each plays one kind of use after another, drawn at random, until it is told to stop.

What must not be is written down as a fault: a request that is refused, a stream that is not right. Errors of the server are counted: under
faults some are due.
"""

import asyncio
import json
import random
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import aiohttp

from tests.fakes.answers import Json
from tests.fakes.streams import StreamFault, check_stream, read_sse
from tests.soak.house import KEY
from tests.soak.model import FAILURES, OWN_TOOL

CALLERS = 6
MOST_TURNS = 150_000
MOST_FAULTS = 50
PAUSE_SECONDS = 0.02
PATIENCE = 45.0
SMALL_WINDOW = 32 * 1024
SMALL_BITE = 16 * 1024
ENDED = ("completed", "incomplete", "failed", "cancelled")
LOOK: Json = {"type": "function", "name": OWN_TOOL, "parameters": {"type": "object"}}
OVER_ONE = [{"type": "compaction", "compact_threshold": 1}]
HEADERS = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}


@dataclass(slots=True)
class Tally:
    """What all callers have seen together."""

    turns: int = 0
    well: int = 0
    killed: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def error(self, kind: str) -> None:
        self.errors[kind] = self.errors.get(kind, 0) + 1

    def fault(self, words: str) -> None:
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(words[:600])


class Caller:
    """One caller with connections of its own."""

    def __init__(self, url: str, mcp_url: str, tally: Tally, chance: random.Random) -> None:
        self._url = url
        self._mcp: Json = {"type": "mcp", "server_label": "docs", "server_url": mcp_url, "require_approval": "never"}
        self._tally = tally
        self._chance = chance
        self._kind = ""
        self._kinds: tuple[Callable[[], Awaitable[None]], ...] = (
            self.plain,
            self.streamed,
            self.stateless,
            self.chained,
            self.branched,
            self.tools,
            self.conversation,
            self.background,
            self.websocket,
            self.compaction,
            self.leaving,
            self.slow_reader,
            self.failing_engine,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Plays every kind once, in an order of its own, over and over; opens its connections anew each time."""
        while not stop.is_set():
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE)) as self._http:
                for play in self._chance.sample(self._kinds, len(self._kinds)):
                    if stop.is_set() or self._tally.turns >= MOST_TURNS:
                        return
                    await self._played(play)

    async def _played(self, play: Callable[[], Awaitable[None]]) -> None:
        self._kind = play.__name__
        self._tally.kinds[self._kind] = self._tally.kinds.get(self._kind, 0) + 1
        try:
            await play()
        except (aiohttp.ClientError, OSError, TimeoutError):
            self._tally.error(self._kind)
        await asyncio.sleep(PAUSE_SECONDS)

    async def plain(self) -> None:
        await self._turn("say something")

    async def streamed(self) -> None:
        await self._turn("say something", stream=True)

    async def stateless(self) -> None:
        await self._turn("say something", store=False, stream=self._chance.random() < 0.5)

    async def chained(self) -> None:
        """A few turns one after another; now and then the chain is deleted."""
        ids: list[object] = []
        for _ in range(self._chance.randint(2, 5)):
            response = await self._turn("say more", stream=self._chance.random() < 0.5, previous_response_id=ids[-1] if ids else None)
            if response is None:
                break
            ids.append(response["id"])
        for id in ids if self._chance.random() < 0.3 else ():
            await self._call("DELETE", f"/v1/responses/{id}")

    async def branched(self) -> None:
        """Several turns behind one, at the same time."""
        root = await self._turn("say what all know")
        if root is not None:
            await asyncio.gather(*(self._turn(f"say branch {n}", previous_response_id=root["id"], stream=n == 1) for n in range(3)))

    async def tools(self) -> None:
        """An MCP server's tool, run by the gateway; then a tool of the client's, and its output."""
        await self._turn("echo this", tools=[self._mcp], stream=self._chance.random() < 0.5)
        asked = await self._turn("look around", tools=[LOOK])
        calls = [item for item in cast(list[Json], asked["output"]) if item["type"] == "function_call"] if asked else []
        if asked is not None and calls:
            outputs: list[Json] = [{"type": "function_call_output", "call_id": call["call_id"], "output": "seen"} for call in calls]
            await self._asked({"input": outputs, "tools": [LOOK], "previous_response_id": asked["id"]})

    async def conversation(self) -> None:
        """A conversation of some turns, one of which may be left; deleted or kept."""
        made = await self._call("POST", "/v1/conversations", {"items": [_user("say hello")]})
        if made is None:
            return
        for _ in range(2):
            await self._turn("say more", conversation=made["id"])
        if self._chance.random() < 0.2:
            await self._left("slow", conversation=made["id"], stream=True)
        if self._chance.random() < 0.5:
            await self._call("DELETE", f"/v1/conversations/{made['id']}")

    async def background(self) -> None:
        """A background turn that is watched, polled, cancelled, or that nobody asks after."""
        word = self._chance.choice(("say", "slow", "echo"))
        queued = await self._call("POST", "/v1/responses", _body(word, background=True, tools=[self._mcp]))
        if queued is None:
            return
        self._tally.turns += 1
        match self._chance.randrange(4):
            case 0:
                await self._watched(queued["id"])
            case 1:
                await self._polled(queued["id"])
            case 2:
                await self._call("POST", f"/v1/responses/{queued['id']}/cancel")

    async def websocket(self) -> None:
        """Turns that are not stored over one WebSocket; now and then it is left in the midst of one."""
        async with self._http.ws_connect(f"{self._url}/v1/responses", headers=HEADERS) as wire:
            parent: object = None
            for _ in range(3):
                parent = await self._by_wire(wire, _body("say more", store=False, previous_response_id=parent))
                if parent is None:
                    return
            if self._chance.random() < 0.4:
                self._tally.turns += 1
                await wire.send_json({"type": "response.create", **_body("slow", store=False, previous_response_id=parent)})
                await asyncio.sleep(self._chance.uniform(0, 0.2))

    async def compaction(self) -> None:
        """A chain that compacts by itself, a trigger, and a compaction on its own."""
        first = await self._turn("say a lot")
        if first is not None:
            await self._turn("say more", previous_response_id=first["id"], context_management=OVER_ONE)
            await self._asked({"input": [{"type": "compaction_trigger"}], "previous_response_id": first["id"]})
        await self._call("POST", "/v1/responses/compact", {"model": "m", "input": [_user("say a lot")]})

    async def leaving(self) -> None:
        """Clients that leave, streamed and not."""
        await self._left("slow", stream=True)
        await self._left("slow")

    async def slow_reader(self) -> None:
        """A client that takes a large answer in small bites, but takes it."""
        self._tally.turns += 1
        address = urlsplit(self._url)
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_WINDOW)
            slow.setblocking(False)
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(PATIENCE):
                await loop.sock_connect(slow, (address.hostname, address.port))
                await loop.sock_sendall(slow, _request_bytes(_body("big", stream=True)))
                while await loop.sock_recv(slow, SMALL_BITE):
                    await asyncio.sleep(0.02)

    async def failing_engine(self) -> None:
        """A turn whose engine fails; that it does not end well is right."""
        word = self._chance.choice([*FAILURES] * 3 + ["say"])
        if word == "silent" and self._chance.random() < 0.7:
            word = "error"
        self._tally.turns += 1
        body = _body(word, stream=self._chance.random() < 0.5)
        async with self._http.post(f"{self._url}/v1/responses", json=body, headers=HEADERS) as answer:
            await answer.read()

    async def _turn(self, words: str, **fields: object) -> Json | None:
        return await self._asked({"input": [_user(words)], **fields})

    async def _asked(self, fields: Json) -> Json | None:
        """One turn that should end well, and its response if it did."""
        self._tally.turns += 1
        body = {"model": "m", **fields}
        async with self._http.post(f"{self._url}/v1/responses", json=body, headers=HEADERS) as answer:
            raw = await answer.read()
        if answer.status == 200 and body.get("stream"):
            response = self._whole(raw, relayed=body.get("store") is False)
        else:
            response = self._judged(answer.status, raw)
        if response is not None and response["status"] == "completed":
            self._tally.well += 1
            return response
        if answer.status < 400:
            self._tally.error(self._kind)
        return None

    def _whole(self, raw: bytes, relayed: bool) -> Json | None:
        """The response of a stream that has completed."""
        if b"event: response.completed" not in raw:
            return None
        try:
            events = read_sse(raw, complete=False).events
            # what is relayed is the engine's own and not ours to judge
            return cast(Json, events[-1]["response"]) if relayed else check_stream(events)
        except StreamFault as fault:
            self._tally.fault(f"{self._kind}: a stream that is not right: {fault}")
            return None

    def _judged(self, status: int, raw: bytes) -> Json | None:
        if status == 200:
            return cast(Json, json.loads(raw))
        self._tally.error(self._kind)
        # a conversation is busy for a moment when its last turn has lost its database
        if status < 500 and status not in (409, 429):
            self._tally.fault(f"{self._kind}: refused with {status}: {raw[:400]!r}")
        return None

    async def _call(self, method: str, path: str, body: Json | None = None) -> Json | None:
        async with self._http.request(method, self._url + path, json=body, headers=HEADERS) as answer:
            return self._judged(answer.status, await answer.read())

    async def _left(self, word: str, **fields: object) -> None:
        """A turn whose client leaves, soon or late."""
        self._tally.turns += 1
        try:
            async with asyncio.timeout(self._chance.uniform(0.01, 0.4)):
                async with self._http.post(f"{self._url}/v1/responses", json=_body(word, **fields), headers=HEADERS) as answer:
                    await answer.read()
        except TimeoutError:
            return

    async def _watched(self, id: object) -> None:
        """A viewer, who leaves before the end or not."""
        seconds = self._chance.choice((0.1, PATIENCE))
        try:
            async with asyncio.timeout(seconds), self._http.get(f"{self._url}/v1/responses/{id}?stream=true", headers=HEADERS) as answer:
                await answer.read()
        except TimeoutError:
            if seconds == PATIENCE:
                raise

    async def _polled(self, id: object) -> None:
        async with asyncio.timeout(PATIENCE):
            while (seen := await self._call("GET", f"/v1/responses/{id}")) is None or seen["status"] not in ENDED:
                await asyncio.sleep(0.2)

    async def _by_wire(self, wire: aiohttp.ClientWebSocketResponse, body: Json) -> object:
        """The id of the response to a frame, or None when it did not complete."""
        self._tally.turns += 1
        await wire.send_json({"type": "response.create", **body})
        while True:
            message = await wire.receive(timeout=PATIENCE)
            if message.type is not aiohttp.WSMsgType.TEXT:
                raise ConnectionError(str(message))
            frame = json.loads(message.data)
            if frame["type"] == "response.completed":
                self._tally.well += 1
                return frame["response"]["id"]
            if frame["type"] in ("error", "response.failed", "response.incomplete"):
                self._judged(int(frame.get("status", 500)), message.data.encode())
                return None


async def poke(url: str) -> None:
    """Uses every connection of the pools a little, so that those which have died are found; no turn, and no engine."""
    async with aiohttp.ClientSession(headers=HEADERS, timeout=aiohttp.ClientTimeout(total=PATIENCE)) as http:

        async def once() -> None:
            async with http.post(f"{url}/v1/conversations", json={}) as answer:
                made = await answer.json()
            for method in ("GET", "DELETE"):
                async with http.request(method, f"{url}/v1/conversations/{made.get('id')}") as answer:
                    await answer.read()

        await asyncio.gather(*(once() for _ in range(12)))


def _user(words: str) -> Json:
    return {"type": "message", "role": "user", "content": words}


def _body(words: str, **fields: object) -> Json:
    return {"model": "m", "input": [_user(words)], **fields}


def _request_bytes(body: Json) -> bytes:
    data = json.dumps(body).encode()
    lines = ["POST /v1/responses HTTP/1.1", "Host: soak", "Connection: close", f"Content-Length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in HEADERS.items()]
    return "\r\n".join([*lines, "", ""]).encode() + data
