"""What must hold after a round: every acknowledged turn is there, whole and continuable; whatever else is stored is whole as well."""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field

import aiohttp
import psycopg

from tests.chaos.clients import Book, Turn, said_in
from tests.fakes.answers import Json
from tests.fakes.engine import FakeEngine

AT_ONCE = 8
TERMINAL = ("completed", "incomplete", "failed", "cancelled")


@dataclass(slots=True)
class Findings:
    """What was looked at, and what is wrong with it."""

    read: int = 0
    strays: int = 0
    faults: list[str] = field(default_factory=list)


class Verifier:
    """Reads a house and compares."""

    def __init__(self, url: str, dsn: str, book: Book, engine: FakeEngine) -> None:
        self._url = url
        self._dsn = dsn
        self._book = book
        self._engine = engine
        self._findings = Findings()
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def verify(self, turns: Iterable[Turn], tips: Iterable[Turn], known: set[str]) -> Findings:
        """Checks `turns` and what is stored beside them; continues from `tips`. `known` are ids that were looked at before."""
        async with aiohttp.ClientSession(base_url=self._url) as self._http:
            strays = [row for row in await self._stored() if row[0] not in self._book.turns and row[0] not in known]
            known.update(response_id for response_id, _ in strays)
            await asyncio.gather(*map(self._acknowledged, turns), *(self._stray(*row) for row in strays))
            await asyncio.gather(*map(self._continued, tips))
        return self._findings

    async def _acknowledged(self, turn: Turn) -> None:
        got = await self._get(f"/v1/responses/{turn.id}")
        self._need(got == turn.response, f"{turn.id} is not as its client had it: {str(got)[:300]}")
        self._need(await self._input(turn.id) == turn.given, f"the input of {turn.id} is not its chain")
        self._findings.read += 1

    async def _stray(self, response_id: str, parent_id: str) -> None:
        """A turn that was stored and whose client does not know: a whole turn all the same."""
        got = await self._get(f"/v1/responses/{response_id}")
        self._need(got is not None and got["status"] in TERMINAL, f"the stored {response_id} is not readable: {str(got)[:300]}")
        given = await self._input(response_id)
        parent = self._book.turns.get(parent_id)
        line = parent.line if parent else ()
        self._need(given is not None and given[: len(line)] == line and len(given) > len(line), f"{response_id} does not follow its parent")
        self._findings.strays += 1

    async def _continued(self, turn: Turn) -> None:
        """Goes on from a turn, in a response that leaves nothing behind."""
        mark = f"and so on from {turn.id}"
        outputs: list[Json] = [{"type": "function_call_output", "call_id": call, "output": mark} for call in turn.open_calls]
        items: list[Json] = [*outputs, {"role": "user", "content": mark}]
        body = {"model": "m", "input": items, "previous_response_id": turn.id, "store": False}
        async with self._slots, self._http.post("/v1/responses", json=body) as answer:
            self._need(answer.status == 200, f"{turn.id} cannot be continued: {(await answer.read())[:300]!r}")
        asked = [received for received in self._engine.posts if mark.encode() in received.body]
        seen = said_in(asked[-1].input) if asked else ()
        self._need(seen == turn.line + said_in(items), f"the engine does not see the chain of {turn.id}")

    async def _input(self, response_id: str) -> tuple[str, ...] | None:
        items: list[Json] = []
        after = ""
        while True:
            page = await self._get(f"/v1/responses/{response_id}/input_items?order=asc&limit=100{after}")
            if page is None:
                return None
            data = page["data"]
            assert isinstance(data, list)
            items += data
            if not page["has_more"]:
                return said_in(items)
            after = f"&after={page['last_id']}"

    async def _get(self, path: str) -> Json | None:
        async with self._slots, self._http.get(path) as answer:
            body: Json = json.loads(await answer.read())
            return body if answer.status == 200 else None

    async def _stored(self) -> list[tuple[str, str]]:
        async with await psycopg.AsyncConnection.connect(self._dsn) as hand:
            return await (await hand.execute("select response_id, parent_id from response")).fetchall()

    def _need(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self._findings.faults.append(otherwise)
