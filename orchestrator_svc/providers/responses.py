"""The `responses` wire: an engine's own stateless `/v1/responses`, as vLLM, SGLang, llama.cpp and hosted APIs serve it.

`Translator` (pure) turns the engine's events into the neutral ones and tolerates what engines leave out or get wrong: no numbers, no
indexes, one index for everything, ids that change between events, a terminal event without output or one that is the only event. The
provider sends the request and feeds it.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import msgspec

from orchestrator_svc.errors import EngineError, EngineStreamInterrupted
from orchestrator_svc.items import JsonObject
from orchestrator_svc.providers import faults
from orchestrator_svc.providers.base import Batches, Taker
from orchestrator_svc.providers.engine_http import EngineHttp, open_engine_http
from orchestrator_svc.providers.http_answer import Answer
from orchestrator_svc.providers.relay import relayed
from orchestrator_svc.providers.sse import MAX_EVENT_BYTES, EventTooLarge, Parser
from orchestrator_svc.request import TurnRequest, engine_fields
from orchestrator_svc.settings import EngineSettings, OrchestratorSettings
from orchestrator_svc.turn.actions import CallModel
from orchestrator_svc.turn.events import (
    ITEM_OF,
    AnnotationAdded,
    ItemFinished,
    ItemStarted,
    ModelEvent,
    ModelFailed,
    ModelFinished,
    PartDelta,
    PartKind,
    Usage,
)
from svckit import json_text
from svckit.errors import ServiceError
from svckit.logs import get_logger

log = get_logger(__name__)

PATH = "/v1/responses"
COUNT_PATH = "/v1/responses/input_tokens"
_OK = 200
_NO_SUCH_PATH = (404, 405, 501)
_HEADERS = {"content-type": "application/json", "accept": "text/event-stream"}


@asynccontextmanager
async def open_responses(engine: EngineSettings, waits: OrchestratorSettings) -> AsyncIterator["ResponsesProvider"]:
    """The provider for one engine; its key is read from the environment here."""
    key = os.environ.get(engine.api_key_env, "") if engine.api_key_env else ""
    async with open_engine_http(engine, key, waits) as http:
        yield ResponsesProvider(engine, http)


class ResponsesProvider:
    """One engine behind this wire."""

    def __init__(self, engine: EngineSettings, http: EngineHttp) -> None:
        self._engine = engine
        self._http = http
        self._counts = True

    @property
    def name(self) -> str:
        return self._engine.name

    async def call(self, request: TurnRequest, model_call: CallModel, taker: Taker | None = None) -> Batches:
        body = self._body(request, model_call)
        try:
            with await self._http.send("POST", PATH, _HEADERS, body) as answer:
                if not _is_stream(answer):
                    yield await self._unstreamed(answer, request.model)
                    return
                parser, translator = Parser(), Translator(self._http.secrets)
                if taker is not None:
                    answer.hand_to(partial(_taken, parser, translator, taker))
                try:
                    async for chunk in answer:
                        events = parser.feed(chunk)
                        read = translator.read(events) if events else ()
                        if read or (events and translator.begun):
                            yield read
                        if translator.ended:
                            return
                    yield translator.end(parser.end())
                finally:
                    if translator.ended:
                        await answer.settle()
        except ServiceError as error:
            log.warning("the engine did not answer to the end", reason=error.reason, cause=_cause(error))
            yield (faults.failed(error),)
        except EventTooLarge:
            log.warning("the engine sent an event that is too large", limit=MAX_EVENT_BYTES)
            yield (faults.failed(EngineError()),)

    async def count(self, request: TurnRequest, model_call: CallModel) -> int | None:
        if not self._counts:
            return None
        body = self._body(request, model_call)
        try:
            with await self._http.send("POST", COUNT_PATH, _HEADERS, body) as answer:
                self._counts = answer.status not in _NO_SUCH_PATH
                return _counted(await answer.whole()) if answer.status == _OK else None
        except ServiceError:
            return None

    async def relay(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        return await relayed(self._http, method, path, headers, body)

    async def answers(self) -> bool:
        return await self._http.answers()

    def _body(self, request: TurnRequest, model_call: CallModel) -> tuple[bytes, ...]:
        first, *others = model_call.input or (b"",)
        pieces = [b"{", self._fields(request, model_call), b',"input":[', first]
        for piece in others:
            pieces += (b",", piece)
        return *pieces, b"]}"

    def _fields(self, request: TurnRequest, model_call: CallModel) -> bytes:
        return engine_fields(
            request,
            model_call.tools,
            model_call.choice,
            include=frozenset(self._engine.include),
            drop=model_call.without | frozenset(self._engine.drop),
            add=self._engine.add,
            model=model_call.model,
        )

    async def _unstreamed(self, answer: Answer, model: str) -> tuple[ModelEvent, ...]:
        if answer.is_good:
            return Translator(self._http.secrets).whole(await answer.whole())
        body = await _explanation(answer)
        said = faults.for_the_log(answer.status, body, self._http.secrets)
        log.warning("the engine refused a request", status=answer.status, answer=said)
        return (faults.failed(faults.refusal_of(answer.status, dict(answer.headers), body, model, self._http.secrets)),)


async def _explanation(answer: Answer) -> bytes:
    """The body of a refusal, as far as it can be had: the status says enough."""
    try:
        return await answer.whole()
    except ServiceError:
        return b""


def _is_stream(answer: Answer) -> bool:
    return answer.is_good and answer.content_type == "text/event-stream"


def _taken(parser: Parser, translator: "Translator", taker: Taker, chunk: bytes) -> bool:
    """Gives a read to the taker if it is one event that only adds to an open part. What is not taken has changed nothing here."""
    event = parser.usual(chunk) if taker.is_open else None
    more = None if event is None else translator.more(event[1])
    return more is not None and taker((more,))


def _cause(error: ServiceError) -> str:
    cause = error.__cause__
    return f"{type(cause).__name__}: {cause}" if cause else ""


class _WireEvent(msgspec.Struct):
    """An event of this wire, as far as it is looked at; what an engine leaves out or sends as null is None."""

    type: str | None = None
    delta: object = None
    item_id: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    logprobs: msgspec.Raw = msgspec.Raw(b"")
    annotation: object = None
    item: object = None
    response: object = None
    error: object = None
    code: object = None
    message: object = None


@dataclass(slots=True)
class _Tracked:
    """An item of the engine's stream, and what the engine calls it."""

    key: int
    type: str
    id: str | None
    index: int | None
    call_id: str | None = None
    first_part: int | None = None
    finished: bool = False
    half: str = ""


@dataclass(slots=True)
class _Place:
    """Where the last delta belonged: the next one that is alike in all but its text belongs there too."""

    of: tuple[object, ...]
    tracked: _Tracked
    key: int
    kind: PartKind
    part: int


def _place_in(wire: _WireEvent) -> tuple[object, ...]:
    return wire.type, wire.item_id, wire.output_index, wire.content_index, wire.summary_index


_decode = msgspec.json.Decoder(_WireEvent).decode

_DELTAS = {
    "response.output_text.delta": PartKind.TEXT,
    "response.refusal.delta": PartKind.REFUSAL,
    "response.reasoning_text.delta": PartKind.REASONING,
    "response.reasoning.delta": PartKind.REASONING,
    "response.reasoning_summary_text.delta": PartKind.SUMMARY,
    "response.function_call_arguments.delta": PartKind.ARGUMENTS,
}
_KNOWN_ITEMS = frozenset(ITEM_OF.values())
_TERMINAL = frozenset(("response.completed", "response.incomplete", "response.failed", "response.cancelled"))


class Translator:
    """One model call, from the engine's events to the neutral ones. `begun` is set by the first event of any meaning."""

    def __init__(self, secrets: tuple[str, ...] = ()) -> None:
        self._secrets = secrets
        self._items: list[_Tracked] = []
        self._last: _Place | None = None
        self.begun = False
        self.ended = False

    def read(self, events: list[tuple[bytes, bytes]]) -> tuple[ModelEvent, ...]:
        """What these events mean; nothing after the engine's terminal event does."""
        read: list[ModelEvent] = []
        for name, data in events:
            if self.ended:
                break
            try:
                wire = _decode(data)
                more = self._more(wire)
            except (msgspec.DecodeError, RecursionError):
                if (salvaged := _salvaged(data)) is None:
                    continue
                wire, more = salvaged, None
            if more is not None:
                read.append(more)
            else:
                read += self._event(wire, wire.type or name.decode("utf-8", "replace"))
        return tuple(read)

    def more(self, data: bytes) -> PartDelta | None:
        """What an event means that only adds to the part which the last one added to, else None; the translator stays as it is."""
        if self._last is None:
            return None
        try:
            return self._more(_decode(data))
        except (msgspec.DecodeError, RecursionError):
            return None

    def _more(self, wire: _WireEvent) -> PartDelta | None:
        """Of an event that msgspec takes: it has no half of a surrogate pair."""
        last, delta = self._last, wire.delta
        if last is None or last.of != _place_in(wire) or not isinstance(delta, str) or not delta or last.tracked.half:
            return None
        return PartDelta(last.key, last.kind, last.part, delta, _logprobs(wire))

    def end(self, rest: list[tuple[bytes, bytes]]) -> tuple[ModelEvent, ...]:
        """The stream has ended with `rest`: a call without a terminal event has failed."""
        read = self.read(rest)
        return read if self.ended else read + self.broken(EngineStreamInterrupted())

    def broken(self, error: ServiceError) -> tuple[ModelEvent, ...]:
        """The stream broke off."""
        self.ended = True
        return (faults.failed(error),)

    def whole(self, body: bytes) -> tuple[ModelEvent, ...]:
        """The engine did not stream: one response object, or an error that came with a good status."""
        try:
            answer = json_text.decode(body, JsonObject)
        except (msgspec.MsgspecError, RecursionError):
            return self.broken(EngineError())
        if isinstance(answer.get("error"), dict) and "output" not in answer:
            return self._failed(answer["error"])
        if not isinstance(answer.get("output"), list):
            return self.broken(EngineError())
        return tuple(self._terminal(answer))

    def _event(self, wire: _WireEvent, type: str) -> list[ModelEvent]:
        self._last = None
        if type in _DELTAS:
            return self._delta(wire, _DELTAS[type])
        self.begun = self.begun or bool(type)
        if type == "response.output_item.added":
            return self._added(wire)
        if type == "response.output_item.done":
            return self._done(wire)
        if type == "response.output_text.annotation.added":
            return self._annotation(wire)
        if type in _TERMINAL:
            return self._terminal(wire.response if isinstance(wire.response, dict) else {"status": type.rpartition(".")[2]})
        if type == "error" or (not type and wire.error is not None):
            return list(self._failed(wire.error if isinstance(wire.error, dict) else {"code": wire.code, "message": wire.message}))
        return []

    def _delta(self, wire: _WireEvent, kind: PartKind) -> list[ModelEvent]:
        if not isinstance(wire.delta, str):
            return []
        tracked = self._find(wire, ITEM_OF[kind]) or self._track(ITEM_OF[kind], wire.item_id, wire.output_index)
        text = self._joined(tracked, wire.delta)
        part = (wire.summary_index or 0) if kind is PartKind.SUMMARY else _part_of(tracked, wire.content_index)
        self._last = _Place(_place_in(wire), tracked, tracked.key, kind, part) if wire.type else None
        return [PartDelta(tracked.key, kind, part, text, _logprobs(wire))] if text else []

    def _joined(self, tracked: _Tracked, delta: str) -> str:
        """The delta with a surrogate pair that was cut in two made whole; the first half waits for the second."""
        if not tracked.half and delta.isascii():
            return delta
        text, tracked.half = tracked.half + delta, ""
        if json_text.ends_in_half(text):
            text, tracked.half = text[:-1], text[-1]
        return json_text.halves_joined(text)

    def _added(self, wire: _WireEvent) -> list[ModelEvent]:
        item = wire.item
        if not isinstance(item, dict) or item.get("type") not in _KNOWN_ITEMS:
            return []
        tracked = self._track(str(item["type"]), _text(item, "id"), wire.output_index)
        tracked.call_id = _text(item, "call_id")
        return [ItemStarted(tracked.key, tracked.type, _text(item, "name") or "", tracked.call_id or "")]

    def _done(self, wire: _WireEvent) -> list[ModelEvent]:
        item = wire.item
        if not isinstance(item, dict) or item.get("type") not in _KNOWN_ITEMS:
            return []
        kind, id = str(item["type"]), _text(item, "id")
        tracked = self._find(wire, kind, id, _text(item, "call_id"), newest=False) or self._track(kind, id, wire.output_index)
        return self._finished(tracked, item)

    def _finished(self, tracked: _Tracked, item: JsonObject) -> list[ModelEvent]:
        if tracked.finished:
            return []
        tracked.finished = True
        return [ItemFinished(tracked.key, item)]

    def _annotation(self, wire: _WireEvent) -> list[ModelEvent]:
        tracked = self._find(wire, "message")
        if tracked is None or not isinstance(wire.annotation, dict):
            return []
        return [AnnotationAdded(tracked.key, wire.content_index or 0, wire.annotation)]

    def _terminal(self, response: JsonObject) -> list[ModelEvent]:
        if response.get("status") in ("failed", "cancelled") or isinstance(response.get("error"), dict):
            error = response.get("error")
            return list(self._failed(error if isinstance(error, dict) else {}))
        self.ended = True
        events = [event for item in self._unfinished(response.get("output")) for event in item]
        return [*events, ModelFinished(_cut(response), _usage(response.get("usage")))]

    def _unfinished(self, output: object) -> list[list[ModelEvent]]:
        """The items of the terminal event that the stream has not ended, matched by id, else by their place among items of their type."""
        items = [item for item in output if isinstance(item, dict) and item.get("type") in _KNOWN_ITEMS] if isinstance(output, list) else []
        by_id = {tracked.id or "": tracked for tracked in self._items}
        places: dict[str, int] = {}
        finished: list[list[ModelEvent]] = []
        for item in items:
            kind = str(item["type"])
            place = places[kind] = places.get(kind, -1) + 1
            of_kind = [tracked for tracked in self._items if tracked.type == kind]
            tracked = by_id.get(_text(item, "id") or "?") or (
                of_kind[place] if place < len(of_kind) else self._track(kind, _text(item, "id"), None)
            )
            finished.append(self._finished(tracked, item))
        return finished

    def _failed(self, error: object) -> tuple[ModelFailed]:
        self.ended = True
        return (faults.failed_by_engine(error if isinstance(error, dict) else {}, self._secrets),)

    def _find(self, wire: _WireEvent, kind: str, id: str | None = None, call_id: str | None = None, newest: bool = True) -> _Tracked | None:
        """The unfinished item that an event speaks of: by id, by call id, by index, else the newest (or oldest) of its kind."""
        id = id or wire.item_id
        if self._items and (last := self._items[-1]).id == id and id and last.type == kind and not last.finished:
            return last
        candidates = [tracked for tracked in self._items if tracked.type == kind and not tracked.finished]
        by_id = [tracked for tracked in candidates if id and tracked.id == id]
        by_call = [tracked for tracked in candidates if tracked.call_id and tracked.call_id in (call_id, id)]
        by_index = [tracked for tracked in candidates if tracked.index is not None and tracked.index == wire.output_index]
        found = by_id or by_call or by_index or candidates
        return found[-1 if newest else 0] if found else None

    def _track(self, kind: str, id: str | None, index: int | None) -> _Tracked:
        tracked = _Tracked(len(self._items), kind, id, index)
        self._items.append(tracked)
        return tracked


def _salvaged(data: bytes) -> _WireEvent | None:
    """The event in data that msgspec refuses, or None for what is no event; lone surrogates in text are kept, to be joined."""
    if data == b"[DONE]":
        return None
    try:
        return msgspec.convert(_only_delta_in_halves(json_text.decode_with_halves(data)), _WireEvent)
    except (ValueError, RecursionError, msgspec.ValidationError):
        return None


def _only_delta_in_halves(event: object) -> object:
    """The event with its lone surrogates replaced everywhere but in a delta; without logprobs, which have no bytes here."""
    if not isinstance(event, dict):
        return event
    return {key: value if key == "delta" else _joined_in(value) for key, value in event.items() if key != "logprobs"}


def _joined_in(value: object) -> object:
    if isinstance(value, str):
        return json_text.halves_joined(value)
    if isinstance(value, list):
        return [_joined_in(part) for part in value]
    if isinstance(value, dict):
        return {json_text.halves_joined(key): _joined_in(part) for key, part in value.items()}
    return value


def _part_of(tracked: _Tracked, content_index: int | None) -> int:
    """The part's place in its item; some engines count parts on from item to item."""
    index = content_index or 0
    if tracked.first_part is None:
        tracked.first_part = index
    return max(index - tracked.first_part, 0)


def _logprobs(wire: _WireEvent) -> bytes:
    raw = bytes(wire.logprobs)
    return raw if raw.startswith(b"[") else b"[]"


def _text(item: JsonObject, key: str) -> str | None:
    value = item.get(key)
    return value if isinstance(value, str) else None


def _cut(response: JsonObject) -> str | None:
    if response.get("status") != "incomplete":
        return None
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    return "content_filter" if reason == "content_filter" else "max_output_tokens"


def _usage(usage: object) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    return Usage(
        _count(usage, "input_tokens"),
        _count(usage.get("input_tokens_details"), "cached_tokens"),
        _count(usage, "output_tokens"),
        _count(usage.get("output_tokens_details"), "reasoning_tokens"),
    )


def _counted(body: bytes) -> int | None:
    """The count in an engine's answer, or None where it is none."""
    try:
        return _count(json_text.decode(body, JsonObject), "input_tokens") or None
    except (msgspec.MsgspecError, RecursionError):
        return None


def _count(counts: object, key: str) -> int:
    value = counts.get(key) if isinstance(counts, dict) else None
    return max(value, 0) if isinstance(value, int) else 0
