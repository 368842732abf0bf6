"""What holds for every turn, whatever an engine says and wherever it is cut: translator, projection and machine together."""

import json
from collections.abc import Sequence
from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator_svc.input_items import read_input
from orchestrator_svc.items import JsonObject, make
from orchestrator_svc.providers.responses import Translator
from orchestrator_svc.providers.sse import Parser
from orchestrator_svc.turn.events import (
    AnnotationAdded,
    Begun,
    Cancelled,
    GracePassed,
    ItemFinished,
    ItemStarted,
    ModelEvent,
    ModelFailed,
    ModelFinished,
    ModelSent,
    PartDelta,
    PartKind,
    Saved,
    SaveFailed,
    Stopped,
    TurnEvent,
    Usage,
)
from orchestrator_svc.turn.state import Limits
from tests.fakes import scripts
from tests.fakes.answers import DIALECTS, Dialect, response_events
from tests.fakes.llama_cpp import llama_events
from tests.fakes.other_wires import sse
from tests.fakes.scripts import Script
from tests.fakes.streams import check_stream
from tests.orchestrator_svc.turns import NOW, Played, play, turn

TERMINAL = ("response.completed", "response.incomplete", "response.failed")
TEXTS = st.text(st.sampled_from('ab \n{}"\\é阴🍸\0\u2028'), max_size=12)
KEYS = st.integers(0, 3)
CITATION: JsonObject = {"type": "url_citation", "url": "https://x.test", "title": "x", "start_index": 0, "end_index": 1}
ERROR = RuntimeError("refused")


def deltas() -> st.SearchStrategy[ModelEvent]:
    return st.builds(PartDelta, KEYS, st.sampled_from(PartKind), st.integers(0, 2), TEXTS.filter(bool))


def starts() -> st.SearchStrategy[ModelEvent]:
    types = st.sampled_from(["message", "reasoning", "function_call"])
    return st.builds(ItemStarted, KEYS, types, st.sampled_from(["", "weather"]), st.sampled_from(["", "call_1", "call_2"]))


def final_items() -> st.SearchStrategy[JsonObject]:
    """What engines say an item was, whether or not it fits what they streamed."""
    status = st.sampled_from(["completed", "incomplete", "in_progress", None])
    annotations = st.sampled_from([None, [], [CITATION], [None]])
    text = st.fixed_dictionaries({"type": st.just("output_text"), "text": TEXTS, "annotations": annotations})
    refusal = st.fixed_dictionaries({"type": st.just("refusal"), "refusal": TEXTS})
    thought = st.fixed_dictionaries({"type": st.just("reasoning_text"), "text": TEXTS})
    summary = st.fixed_dictionaries({"type": st.just("summary_text"), "text": TEXTS})
    content = st.one_of(st.none(), st.lists(st.one_of(text, refusal, st.none()), max_size=3))
    message = st.fixed_dictionaries({"type": st.just("message"), "status": status, "content": content, "phase": st.none()})
    reasoning = st.fixed_dictionaries(
        {
            "type": st.just("reasoning"),
            "summary": st.one_of(st.none(), st.lists(summary, max_size=2)),
            "content": st.one_of(st.none(), st.lists(thought, max_size=2)),
            "encrypted_content": st.sampled_from([None, "", "opaque"]),
        }
    )
    call = st.fixed_dictionaries(
        {
            "type": st.just("function_call"),
            "status": status,
            "name": st.sampled_from([None, "", "weather"]),
            "call_id": st.sampled_from([None, "call_1"]),
            "arguments": st.one_of(TEXTS, st.none(), st.just({"a": 1})),
        }
    )
    return st.one_of(message, reasoning, call)


FINAL_ITEMS = final_items()


def model_events() -> st.SearchStrategy[ModelEvent]:
    notes = st.builds(AnnotationAdded, KEYS, st.integers(0, 2), st.just(CITATION))
    return st.one_of(deltas(), deltas(), starts(), notes, st.builds(ItemFinished, KEYS, FINAL_ITEMS))


def endings() -> st.SearchStrategy[tuple[ModelEvent, ...]]:
    usage = st.one_of(st.none(), st.builds(Usage, *[st.integers(0, 50)] * 4))
    finished = st.builds(ModelFinished, st.sampled_from([None, "max_output_tokens", "content_filter"]), usage)
    return st.one_of(st.just(()), st.tuples(finished), st.just((ModelFailed("server_error", "It broke.", ERROR),)))


def calls() -> st.SearchStrategy[list[ModelSent]]:
    """One model call: some network reads, the last of which may end it."""
    reads = st.lists(st.lists(model_events(), max_size=6).map(tuple), max_size=5)
    return st.tuples(reads, endings()).map(lambda drawn: [ModelSent(read, NOW) for read in [*drawn[0], drawn[1]]])


CALLS = calls()


INTERRUPTIONS: st.SearchStrategy[TurnEvent] = st.sampled_from(
    [GracePassed(), Cancelled(), Stopped("server_shutdown", "It stops.", ERROR), Saved(), SaveFailed("storage_failed", "No.")]
)


SAVES: st.SearchStrategy[TurnEvent] = st.sampled_from([Saved(), SaveFailed("storage_failed", "No.")])


def as_translated(calls: list[ModelSent]) -> list[ModelSent]:
    """The same reads without what no translator says: an item that starts late or twice, or that changes its type."""
    types: dict[int, str] = {}
    kept: list[ModelSent] = []
    for call in calls:
        kept.append(replace(call, events=tuple(event for event in call.events if is_possible(event, types))))
        if any(isinstance(event, ModelFinished) for event in call.events):
            types.clear()
    return kept


def is_possible(event: ModelEvent, types: dict[int, str]) -> bool:
    match event:
        case ItemStarted(key, type):
            return key not in types and types.setdefault(key, type) == type
        case PartDelta(key, kind):
            return types.setdefault(key, ITEM_OF[kind]) == ITEM_OF[kind]
        case ItemFinished(key, item):
            types.setdefault(key, str(item["type"]))
    return True


ITEM_OF = {
    PartKind.TEXT: "message",
    PartKind.REFUSAL: "message",
    PartKind.REASONING: "reasoning",
    PartKind.SUMMARY: "reasoning",
    PartKind.ARGUMENTS: "function_call",
}


@st.composite
def lives(draw: st.DrawFn) -> list[TurnEvent]:
    """A turn's whole life: two model calls at most, an interruption anywhere, and an end."""
    life: list[TurnEvent] = list(as_translated([*draw(CALLS), *draw(CALLS)]))
    for _ in range(draw(st.integers(0, 2))):
        life.insert(draw(st.integers(0, len(life))), draw(INTERRUPTIONS))
    return [Begun(), *life, Stopped("turn_timeout", "Too long.", ERROR), draw(SAVES)]


LIVES = lives()


def check(played: Played) -> None:
    """All that holds for the stream of one turn and for what is stored of it."""
    events = played.events
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    terminal = [event for event in events if event["type"] in TERMINAL]
    assert len(terminal) <= 1
    assert len(played.records) <= 1
    if terminal:
        check_stream(events)
    if terminal and played.records and events[-1]["response"]["error"] != {"code": "storage_failed", "message": "No."}:  # type: ignore[index]
        assert stored(played) == played.response


def stored(played: Played) -> JsonObject:
    """What GET would show."""
    (record,) = played.records
    made = record.items[record.input_count :]
    body = msgspec.json.decode(record.body)
    assert body["status"] == record.status
    return {"id": record.response_id} | body | {"output": [msgspec.json.decode(item.shown) for item in made]}


@given(LIVES)
def test_every_life_of_a_turn_is_one_well_formed_stream(life: list[TurnEvent]) -> None:
    check(play(turn(limits=Limits(10, 400, 30)), life))


@given(LIVES, st.integers(1, 60), st.integers(1, 4))
def test_no_turn_outgrows_its_limits_by_more_than_one_read(life: list[TurnEvent], chars: int, items: int) -> None:
    played = play(turn(limits=Limits(10, chars, items)), life)

    check(played)
    largest = max(
        sum(len(event.text) for event in sent.events if isinstance(event, PartDelta)) for sent in life if isinstance(sent, ModelSent)
    )
    assert played.turn.output.size <= chars + largest + 6 * 3 * 12


@given(LIVES)
def test_a_turn_that_is_over_says_nothing_more(life: list[TurnEvent]) -> None:
    over = play(turn(limits=Limits(10, 400, 30)), life).turn

    again = play(over, [ModelSent((PartDelta(0, PartKind.TEXT, 0, "late"),), NOW), GracePassed(), Cancelled()])

    assert again.actions == ()


# From here on the engine is one that makes sense, in one of the dialects, and its bytes go through the parser and the translator too.

WORDS = st.text(st.sampled_from("ab é阴🍸"), min_size=1, max_size=20).filter(str.strip)


def answers() -> st.SearchStrategy[Script]:
    arguments = st.dictionaries(st.sampled_from("ab"), WORDS)
    one = st.one_of(
        WORDS.map(scripts.text),
        st.lists(WORDS, min_size=1, max_size=3).map(lambda texts: scripts.texts(*texts)),
        WORDS.map(scripts.refusal),
        st.builds(lambda said, summary: scripts.reasoning(said, summary=summary), WORDS, st.lists(WORDS, max_size=2)),
        st.builds(lambda given: scripts.function_call("weather", given), arguments),
    )
    return st.lists(one, min_size=1, max_size=4).map(lambda parts: sum(parts[1:], parts[0]))


def engine_bytes(script: Script, dialect: Dialect) -> bytes:
    """The engine's whole stream."""
    assert script.answer is not None
    numbers = iter(range(1, 10_000))

    def mint(prefix: str) -> str:
        return f"{prefix}_engine{next(numbers):06d}"

    made = llama_events(script.answer, {}, mint) if dialect.overlapping else response_events(script.answer, {}, dialect, mint)
    return b"".join(map(sse, made))


def read_in(pieces: Sequence[bytes]) -> list[tuple[ModelEvent, ...]]:
    """What the provider would give for a stream that arrives in these pieces and then ends."""
    parser, translator = Parser(), Translator()
    read: list[tuple[ModelEvent, ...]] = []
    for piece in pieces:
        read.append(translator.read(parser.feed(piece)))
        if translator.ended:
            return read
    return [*read, translator.end(parser.end())]


def split(data: bytes, edges: Sequence[int]) -> list[bytes]:
    cuts = sorted({0, len(data), *(edge % (len(data) + 1) for edge in edges)})
    return [data[start:end] for start, end in pairwise(cuts)]


def lived(pieces: Sequence[bytes]) -> Played:
    played = play(turn(limits=Limits(1, 100_000, 100)), [Begun(), *(ModelSent(read, NOW) for read in read_in(pieces)), Saved()])
    check(played)
    return played


ANSWERS = answers()
DIALECT = st.sampled_from(list(DIALECTS.values()))


@given(ANSWERS, DIALECT, st.lists(st.integers(0, 100_000), max_size=30))
def test_how_the_bytes_are_cut_up_changes_nothing_b119_b120(script: Script, dialect: Dialect, edges: list[int]) -> None:
    whole = engine_bytes(script, dialect)

    assert lived(split(whole, edges)).events == lived([whole]).events


@given(ANSWERS, DIALECT)
def test_every_dialect_tells_the_same_story_b027_b042(script: Script, dialect: Dialect) -> None:
    """What is stored is what the model said, whichever of the engines it said it through."""
    played = lived([engine_bytes(script, dialect)])

    assert played.response["status"] == "completed"
    assert [said(item) for item in output_of(played)] == expected(script, merged=dialect.overlapping)


def output_of(played: Played) -> list[JsonObject]:
    output = played.response["output"]
    assert isinstance(output, list)
    return output


def said(item: JsonObject) -> tuple[object, ...]:
    if item["type"] == "function_call":
        return item["name"], item["arguments"]
    parts = [*item.get("summary", []), *item.get("content", [])]  # type: ignore[misc]
    return tuple(part.get("text", part.get("refusal")) for part in parts)


def expected(script: Script, *, merged: bool) -> list[tuple[object, ...]]:
    """The texts of the script's items; an engine that merges them shows one part, and no summaries."""
    assert script.answer is not None
    story: list[tuple[object, ...]] = []
    for item in script.answer.items:
        match item:
            case scripts.Call(name):
                story.append((name, item.arguments))
            case scripts.Message(parts):
                texts = tuple(part.text for part in parts)
                story.append(("".join(texts),) if merged else texts)
            case scripts.Reasoning(texts, summaries):
                shown = (*(() if merged else summaries), *texts)
                story.append(tuple("".join(text) for text in shown))
    return story


@given(ANSWERS, DIALECT, st.integers(0, 100_000))
def test_a_stream_that_breaks_off_anywhere_has_failed_b030_b032_b033(script: Script, dialect: Dialect, at: int) -> None:
    whole = engine_bytes(script, dialect)
    kept = whole[: at % len(whole)]

    played = lived([kept])

    if played.stream and b'"response.completed"' not in kept:
        assert played.response["status"] == "failed"
        assert all(item.get("status") != "in_progress" for item in output_of(played))


@given(st.lists(ANSWERS, min_size=2, max_size=4), DIALECT)
def test_a_continuation_starts_with_the_bytes_of_the_turn_before(story: list[Script], dialect: Dialect) -> None:
    """The engine's input of turn n+1 is turn n's input, its output, and what is new."""
    context, seen = b"", b""
    for script in story:
        start = turn(limits=Limits(1, 100_000, 100), context=context)
        events = read_in([engine_bytes(script, dialect)])
        played = play(start, [Begun(), *(ModelSent(read, NOW) for read in events), Saved()])
        given_to_engine = b",".join(played.actions[0].input)  # type: ignore[union-attr]
        assert given_to_engine.startswith(seen)
        (record,) = played.records
        rendered = b",".join(item.rendered for item in record.items[record.input_count :] if item.rendered)
        seen = context = given_to_engine + (b"," + rendered if rendered else b"")
        json.loads(b"[" + seen + b"]")


@given(FINAL_ITEMS)
def test_what_a_model_made_is_read_back_as_the_same_prompt(final: JsonObject) -> None:
    """A client that sends our output back as input gets the same prompt, so that the engine's cache stays warm."""
    life = [Begun(), ModelSent((ItemFinished(0, final), ModelFinished(None, None)), NOW), Saved()]
    for record in play(turn(), life).records:
        for item in record.items[record.input_count :]:
            (again,) = read_input([item.shown], lambda prefix: prefix)
            if not item.origin:
                assert again.rendered == item.rendered
            assert msgspec.json.decode(again.body) == msgspec.json.decode(item.body)


@given(FINAL_ITEMS)
def test_the_prompt_form_is_json_or_nothing(final: JsonObject) -> None:
    life = [Begun(), ModelSent((ItemFinished(0, final), ModelFinished(None, None)), NOW), Saved()]
    for record in play(turn(), life).records:
        for item in record.items:
            json.loads(b"[" + item.rendered + b"]")
            assert make(item.id, msgspec.json.decode(item.body), "engine").rendered == item.rendered
