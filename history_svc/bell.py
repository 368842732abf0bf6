"""The bell: whoever waits for the events of a response is woken when there may be new ones, in whichever process they were stored.

A wake-up is a hint and nothing more; what there is to see is read from the database. Bells of different processes hear one another over
LISTEN and NOTIFY, all responses over one connection each, and messages are sent outside commits, many responses at a time. Behind a pooler,
or while the connection is away, nothing is heard: then whoever waits looks for themselves every second. No SQL here.
"""

import asyncio
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import psycopg

from history_svc.pools import Pool, connected
from history_svc.statements import STATEMENTS
from svckit.errors import ServiceError
from svckit.lifecycle import Background
from svckit.logs import get_logger

GATHER_SECONDS = 0.02  # rings within this time travel together
DEAF_SECONDS = 1.0  # how often to look while nothing is heard
HEARING_SECONDS = 10.0  # how often to look all the same: a message may be lost
IDS_IN_A_MESSAGE = 100  # a message may have 8,000 bytes

log = get_logger(__name__)


class Bell:
    """Rings and hears rings. `async with bell.opened():` while it is in use."""

    def __init__(self, pool: Pool, listen_url: str) -> None:
        self._pool = pool
        self._listen_url = listen_url
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._rung: set[str] = set()
        self._to_send = asyncio.Event()
        self._probe = f"probe-{secrets.token_hex(8)}"
        self._background = Background(grace=0)
        self._listener: asyncio.Task[None] | None = None
        self.hears = False

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["Bell"]:
        """Sends for the block, and listens from the first one who waits."""
        async with self._background:
            self._background.start(self._keep_sending(), "bell")
            yield self

    def ring(self, response_id: str) -> None:
        """Wakes whoever waits for a response, in all processes. Never waits itself."""
        self.wake(response_id)
        self._rung.add(response_id)
        self._to_send.set()

    def wake(self, response_id: str) -> None:
        """Wakes whoever waits for a response in this process."""
        for woken in self._waiting.get(response_id, ()):
            woken.set()

    @contextmanager
    def heard(self, response_id: str) -> Iterator["Ear"]:
        """Hears the rings for a response during the block."""
        if self._listener is None:
            self._listener = self._background.start(self._keep_listening(), "listener")
        woken = asyncio.Event()
        self._waiting[response_id].add(woken)
        try:
            yield Ear(self, woken)
        finally:
            self._waiting[response_id].discard(woken)
            if not self._waiting[response_id]:
                del self._waiting[response_id]

    async def _keep_sending(self) -> None:
        while True:
            await self._to_send.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._to_send.clear()
            rung, self._rung = sorted(self._rung), set()
            try:
                await self._send([",".join(rung[n : n + IDS_IN_A_MESSAGE]) for n in range(0, len(rung), IDS_IN_A_MESSAGE)])
            except ServiceError as error:
                log.warning("rings were not passed on; viewers elsewhere will look for themselves", reason=error.reason)

    async def _send(self, messages: list[str]) -> None:
        await self._pool.run(lambda connection: connection.execute(STATEMENTS["notify"], {"messages": messages}))

    async def _keep_listening(self) -> None:
        while True:
            try:
                await self._listen()
            except (psycopg.Error, ServiceError) as exc:
                log.warning("nothing is heard of other processes", error=repr(exc))
            self.hears = False
            await asyncio.sleep(DEAF_SECONDS)

    async def _listen(self) -> None:
        async with await connected(self._listen_url) as connection:
            await connection.execute(STATEMENTS["listen"])
            await self._send([self._probe])
            async for message in connection.notifies():
                self._hear(message.payload)

    def _hear(self, message: str) -> None:
        if message == self._probe:
            self.hears = True
            self._wake_all()  # what was missed so far nobody will say again
            return
        for response_id in message.split(","):
            self.wake(response_id)

    def _wake_all(self) -> None:
        for response_id in list(self._waiting):
            self.wake(response_id)


class Ear:
    """Hears the rings for one response."""

    def __init__(self, bell: Bell, woken: asyncio.Event) -> None:
        self._bell = bell
        self._woken = woken

    def forget(self) -> None:
        """What has rung so far does not count; to be called before looking."""
        self._woken.clear()

    async def wait(self, at_most: float = HEARING_SECONDS) -> None:
        """Returns when it rings, or when it is time to look all the same."""
        seconds = min(at_most, HEARING_SECONDS if self._bell.hears else DEAF_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
