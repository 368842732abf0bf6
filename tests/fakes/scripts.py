"""What the fake engine does with one request: a value that says which bytes go out, when, and how the connection ends.

Builders make scripts (`text("hello")`, `function_call(...)`, `status(429)`), `+` joins what a model says, and methods add faults and waits:
`text("a b c").cut(events=4, ending="reset")`, `text("hi").hold_head(event)`. This file opens no socket; `engine.py` plays scripts.
"""

import asyncio
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from tests.fakes.answers import Answer, Call, Dialect, Item, Json, Message, Mint, Other, Part, Reasoning, Usage, joined, pieces

Wait = asyncio.Event | float
Ending = Literal["end", "close", "reset", "hang"]
Edit = Callable[[Json], Json | bytes | Sequence[Json | bytes] | None]


class Asked(Protocol):
    """The part of a received request that decides how a script is put on the wire."""

    @property
    def path(self) -> str: ...
    @property
    def json(self) -> Json: ...


@dataclass(frozen=True, slots=True)
class Reply:
    """A status, headers and the body in the pieces that are written one by one; chunked, or with its length."""

    status: int
    headers: Mapping[str, str]
    pieces: tuple[bytes, ...]
    chunked: bool


Render = Callable[[Answer, Asked, Dialect, Mint, Edit | None], Reply]


@dataclass(frozen=True, slots=True)
class Script:
    """One request's fate. Either `answer` (rendered for the endpoint and for `stream`) or a fixed `reply`, or neither: nothing is sent.

    `ending`: "end" finishes the body properly, "close" closes the socket, "reset" sends RST, "hang" never goes on.
    `raw`: bytes written to the socket as they are, instead of a reply.
    """

    answer: Answer | None = None
    reply: Reply | None = None
    raw: tuple[bytes, ...] | None = None
    dialect: Dialect | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    head_wait: Wait | None = None
    waits: Mapping[int, Wait] = field(default_factory=dict)
    pace: float = 0.0
    edit: Edit | None = None
    keep_events: int | None = None
    keep_bytes: int | None = None
    ending: Ending = "end"
    write_size: int | None = None
    split_at: tuple[int, ...] = ()
    close_after: bool = False

    def __add__(self, other: "Script") -> "Script":
        """Both answers as one: all items, the later script's ending, status and usage."""
        assert self.answer is not None
        assert other.answer is not None
        return replace(other, answer=joined(self.answer, other.answer))

    def using(self, usage: Usage | None) -> "Script":
        """The same answer with this usage; None leaves usage out altogether."""
        assert self.answer is not None
        return replace(self, answer=replace(self.answer, usage=usage, no_usage=usage is None))

    def incomplete(self, reason: str = "max_output_tokens") -> "Script":
        """The same answer, cut short by the engine itself: how that is said depends on the dialect."""
        assert self.answer is not None
        return replace(self, answer=replace(self.answer, status="incomplete", reason=reason))

    def failed(self, code: str = "server_error", message: str = "The engine failed.", error_event: bool = False) -> "Script":
        """What was said so far, then `response.failed`, with an `error` event before it if asked for."""
        assert self.answer is not None
        return replace(self, answer=replace(self.answer, status="failed", error=(code, message), error_event=error_event))

    def cut(self, *, events: int | None = None, bytes: int | None = None, ending: Ending = "close") -> "Script":
        """Only the first `events` events or `bytes` bytes of the body go out, then the ending; "end" is a clean end of the body."""
        return replace(self, keep_events=events, keep_bytes=bytes, ending=ending)

    def hold_head(self, wait: Wait) -> "Script":
        """Status and headers wait for the event, or for seconds."""
        return replace(self, head_wait=wait)

    def hold(self, wait: Wait, before: int) -> "Script":
        """Piece number `before` (an event of a stream, counted from 0) waits for the event, or for seconds."""
        return replace(self, waits={**self.waits, before: wait})

    def paced(self, seconds: float) -> "Script":
        """Every piece waits that long before it is sent."""
        return replace(self, pace=seconds)

    def edited(self, edit: Edit) -> "Script":
        """Each event passes through `edit`: it returns an event or raw bytes, several of them, or None to leave it out."""
        return replace(self, edit=edit)

    def written_in(self, size: int) -> "Script":
        """The body goes out in writes of `size` bytes, whatever that splits."""
        return replace(self, write_size=size)

    def split(self, *offsets: int) -> "Script":
        """The body goes out in one write, split at these byte offsets only."""
        return replace(self, split_at=offsets)

    def speaking(self, dialect: Dialect) -> "Script":
        return replace(self, dialect=dialect)

    def with_headers(self, headers: Mapping[str, str]) -> "Script":
        return replace(self, headers={**self.headers, **headers})

    def then_close(self) -> "Script":
        """The reply promises keep-alive, and the connection is closed right behind it."""
        return replace(self, close_after=True)


def text(content: str, *, deltas: Iterable[str] | None = None, annotations: Iterable[Json] = ()) -> Script:
    """An assistant message with one text part; `deltas` fixes how it is cut up."""
    return _says(Message((Part("output_text", tuple(deltas) if deltas is not None else pieces(content), tuple(annotations)),)))


def texts(*contents: str) -> Script:
    """One assistant message with several text parts."""
    return _says(Message(tuple(Part("output_text", pieces(content)) for content in contents)))


def refusal(content: str) -> Script:
    """An assistant message with a refusal part."""
    return _says(Message((Part("refusal", pieces(content)),)))


def reasoning(*content: str, summary: Sequence[str] = (), encrypted_content: str | None = None) -> Script:
    """A reasoning item: plain texts, summaries, or both."""
    return _says(Reasoning(tuple(map(pieces, content)), tuple(map(pieces, summary)), encrypted_content))


def function_call(name: str, arguments: Mapping[str, object] | str, call_id: str | None = None) -> Script:
    """A function call; arguments given as a string are sent as they are, valid or not."""
    string = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return _says(Call(name, tuple(string[start : start + 6] for start in range(0, len(string), 6)), call_id))


def message_and_call(content: str, name: str, arguments: Mapping[str, object] | str, call_id: str | None = None) -> Script:
    """A text and a function call in one answer."""
    return text(content) + function_call(name, arguments, call_id)


def item(body: Mapping[str, object]) -> Script:
    """An output item of any type, as given."""
    return _says(Other(body))


def silence() -> Script:
    """A response that completes with no output item."""
    return Script(answer=Answer())


def _says(item: Item) -> Script:
    return Script(answer=Answer((item,)))


def status(code: int, body: Json | str | bytes | None = None, *, headers: Mapping[str, str] | None = None) -> Script:
    """Any status. The body is JSON (dict), HTML or text (str), or bytes; None makes the error object that vLLM sends."""
    if body is None:
        body = engine_error(code, f"The engine says {code}.")
    if isinstance(body, dict):
        return _fixed(code, "application/json", json.dumps(body).encode(), headers)
    kind = "text/html; charset=utf-8" if isinstance(body, str) and body.lstrip().startswith("<") else "text/plain; charset=utf-8"
    return _fixed(code, kind, body.encode() if isinstance(body, str) else body, headers)


def engine_error(code: int, message: str) -> Json:
    """An error object as vLLM and llama.cpp write it: the code is an integer and `param` is null."""
    names = {400: "BadRequestError", 404: "NotFoundError", 429: "RateLimitError", 503: "ServiceUnavailableError"}
    return {"error": {"message": message, "type": names.get(code, "InternalServerError"), "param": None, "code": code}}


def empty(code: int = 200) -> Script:
    """A status with no body at all."""
    return _fixed(code, "application/json", b"", None)


def stream_bytes(*written: bytes, headers: Mapping[str, str] | None = None) -> Script:
    """A 200 event stream whose body is exactly these writes."""
    return Script(reply=Reply(200, {"Content-Type": "text/event-stream", **(headers or {})}, written, chunked=True))


def raw(*written: bytes, ending: Ending = "close") -> Script:
    """These bytes on the socket, head included, then the ending."""
    return Script(raw=written, ending=ending)


def never() -> Script:
    """The request is read and nothing is ever said."""
    return Script(raw=(), ending="hang")


def hang_up(ending: Ending = "close") -> Script:
    """The connection ends with no byte of a response."""
    return Script(raw=(), ending=ending)


def _fixed(code: int, content_type: str, body: bytes, headers: Mapping[str, str] | None) -> Script:
    return Script(reply=Reply(code, {"Content-Type": content_type, **(headers or {})}, (body,) if body else (), chunked=False))


def cut_to(count: int | None, written: Iterable[bytes]) -> tuple[bytes, ...]:
    """The first `count` bytes of the writes, split as they were."""
    if count is None:
        return tuple(written)
    kept: list[bytes] = []
    for piece in written:
        kept.append(piece[:count])
        count -= len(kept[-1])
    return tuple(piece for piece in kept if piece)


def writes_of(script: Script, body: Sequence[bytes]) -> tuple[bytes, ...]:
    """The body in the writes that the script asks for, and no more of it than the script keeps."""
    kept = cut_to(script.keep_bytes, body[: script.keep_events])
    if script.write_size is None and not script.split_at:
        return kept
    whole = b"".join(kept)
    cuts = script.split_at or tuple(range(script.write_size or 1, len(whole), script.write_size or 1))
    edges = (0, *(cut for cut in cuts if 0 < cut < len(whole)), len(whole))
    return tuple(whole[start:end] for start, end in itertools.pairwise(edges))
