"""What clients keep for the gateway: summaries and plain reasoning, sealed for their owner, and opened when they come back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from orchestrator_svc.context.sealing import PREFIX, Seals, is_sealed
from orchestrator_svc.errors import InvalidRequest
from orchestrator_svc.items import JsonObject
from tests.end_to_end.prompts import kinds, texts
from tests.fakes.scripts import function_call, reasoning, text
from tests.orchestrator_svc.scribe import Scribe, over, summed_up, user
from tests.orchestrator_svc.tool_turns import LOOK, World, open_world
from tests.orchestrator_svc.turns import RULES

ASKED = {"include": ["reasoning.encrypted_content"]}
SEALS = Seals(("new", "old"))


@given(st.binary(min_size=1), st.text(), st.text())
def test_what_is_sealed_is_opened_by_its_owner_only(content: bytes, owner: str, other: str) -> None:
    blob = SEALS.seal(owner, "compaction", content)

    assert is_sealed(blob)
    assert SEALS.open(owner, "compaction", blob) == content
    assert SEALS.open(owner, "reasoning", blob) is None
    assert SEALS.open(other, "compaction", blob) == (content if other == owner else None)
    assert SEALS.seal(owner, "compaction", content) == blob


@given(st.data())
def test_what_was_changed_is_not_opened(data: st.DataObject) -> None:
    blob = SEALS.seal("ada", "compaction", b"the summary of a long talk")
    place = data.draw(st.integers(0, len(blob) - 1))
    changed = blob[:place] + data.draw(st.characters()) + blob[place + 1 :]
    shortened = blob[:place]

    assert SEALS.open("ada", "compaction", shortened) is None
    assert changed == blob or SEALS.open("ada", "compaction", changed) is None


def test_old_secrets_open_and_the_first_one_seals() -> None:
    old, new, other = Seals(("old",)), Seals(("new",)), Seals(("other",))
    blob = old.seal("ada", "compaction", b"x")
    assert SEALS.open("ada", "compaction", blob) == b"x"
    assert new.open("ada", "compaction", SEALS.seal("ada", "compaction", b"x")) == b"x"
    assert other.open("ada", "compaction", blob) is None


def test_a_blob_tells_nothing_of_its_content() -> None:
    assert "secret" not in SEALS.seal("ada", "compaction", b"secret" * 10)
    assert SEALS.seal("ada", "compaction", b"x") != SEALS.seal("bob", "compaction", b"x")


# Compactions.


async def a_compaction(world: World, **fields: object) -> JsonObject:
    """The item of a turn that has compacted its context of the messages "one" and "two"."""
    world.engine.default = Scribe()
    turned = await world.turn(user("one"), user("two"), context_management=over(1), **fields)  # type: ignore[arg-type]
    return turned.output[0]


async def test_a_compaction_comes_back_as_the_window_that_it_was(world: World) -> None:
    made = await a_compaction(world, store=False)
    await world.turn(made, user("three"), store=False)
    assert texts(world.engine.posts[-1]) == [*texts(world.engine.posts[1]), "three"]


async def test_a_compaction_that_comes_back_is_kept_with_its_id(world: World) -> None:
    """B094: it is stored as the input that it is, unknown fields included, and given to the model once more."""
    made = {**await a_compaction(world), "internal": {"kept": True}}
    turned = await world.turn(made, user("three"))
    await world.turn(user("four"), previous_response_id=turned.id)

    assert texts(world.engine.posts[-1])[-4:] == [summed_up(1), "three", "re: three", "four"]
    listed = await world.listed(turned.id)
    assert listed[0] == made


@pytest.mark.parametrize(
    "spoil",
    [
        lambda blob: blob[:-4] + ("AAAA" if blob[-4:] != "AAAA" else "BBBB"),
        lambda blob: blob[:-1],
        lambda blob: blob + "=",
        lambda blob: PREFIX,
        lambda blob: "",
        lambda blob: "gAAAAABnot-of-this-gateway",
        lambda blob: SEALS.seal("ada", "compaction", b"{}"),
        lambda blob: RULES.seals.seal("ada", "reasoning", b"{}"),
        lambda blob: RULES.seals.seal("bob", "compaction", b"{}"),
    ],
    ids=["changed", "cut", "padded", "empty", "nothing", "another's", "other secret", "other kind", "other owner"],
)
async def test_a_compaction_that_is_not_ours_is_refused(world: World, spoil: "object") -> None:
    made = await a_compaction(world)
    asked_before = len(world.engine.posts)
    spoiled = {**made, "encrypted_content": spoil(made["encrypted_content"])}  # type: ignore[operator]

    with pytest.raises(InvalidRequest) as caught:
        await world.turn(user("hi"), spoiled)

    assert caught.value.param == "input[1].encrypted_content"
    assert len(world.engine.posts) == asked_before


async def test_the_compaction_of_another_owner_is_refused(world: World) -> None:
    made = await a_compaction(world)
    with pytest.raises(InvalidRequest) as caught:
        await world.turn(made, owner="bob")
    assert caught.value.param == "input[0].encrypted_content"


async def test_a_secret_can_be_replaced(database: str) -> None:
    async with open_world(database, rules=structs.replace(RULES, seals=Seals(("old",)))) as world:
        made = await a_compaction(world)
    async with open_world(database, rules=structs.replace(RULES, seals=Seals(("new", "old")))) as world:
        world.engine.default = Scribe()
        assert (await world.turn(made, user("three"))).types == ["message"]
    async with open_world(database, rules=structs.replace(RULES, seals=Seals(("new",)))) as world:
        with pytest.raises(InvalidRequest):
            await world.turn(made, user("three"))


# Reasoning.


async def test_plain_reasoning_is_sealed_where_its_client_asks_for_that(world: World) -> None:
    world.engine.play(reasoning("Hm, ", "let me see.") + text("Yes."), reasoning("Hm.") + text("Yes."))
    sealed = await world.turn(user("well?"), **ASKED)  # type: ignore[arg-type]
    plain = await world.turn(user("well?"))

    assert is_sealed(sealed.output[0]["encrypted_content"])
    assert sealed.output[0]["content"]
    assert "see" not in str(sealed.output[0]["encrypted_content"])
    assert (await world.stored(sealed.id))["output"] == sealed.output
    assert "encrypted_content" not in plain.output[0]


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("left", [{"content": None}, {"content": []}, {"content": None, "id": None}], ids=["null", "empty", "no id"])
async def test_reasoning_comes_back_without_its_text_and_is_read_again(world: World, left: JsonObject, store: bool) -> None:
    """B009: the engine sees what it would see had the turn been continued by its id, byte for byte."""
    world.engine.play(reasoning("Hm, ", "let me see.") + function_call("look", {}, "call_1"), text("Yes."), text("Yes."))
    asking = await world.turn(user("well?"), tools=[LOOK], **ASKED)  # type: ignore[arg-type]
    thought, made = asking.output
    seen = {"type": "function_call_output", "call_id": made["call_id"], "output": "seen"}

    await world.turn(seen, previous_response_id=asking.id, tools=[LOOK])
    await world.turn(user("well?"), {**thought, **left}, made, seen, tools=[LOOK], store=store, **ASKED)  # type: ignore[arg-type]

    assert kinds(world.engine.posts[2]) == ["user", "reasoning", "function_call", "function_call_output"]
    assert world.engine.posts[2].json["input"] == world.engine.posts[1].json["input"]


async def test_a_chain_of_sealed_reasoning_goes_on_from_what_was_stored(world: World) -> None:
    """B009."""
    world.engine.play(reasoning("Hm.") + text("Yes."), text("So."), text("On."))
    first = await world.turn(user("well?"), store=False, **ASKED)  # type: ignore[arg-type]
    second = await world.turn(user("well?"), {**first.output[0], "content": None}, first.output[1], user("and?"))
    await world.turn(user("then?"), previous_response_id=second.id)
    assert texts(world.engine.posts[-1]) == ["well?", "Hm.", "Yes.", "and?", "So.", "then?"]


async def test_the_reasoning_of_other_gateways_is_passed_over(world: World) -> None:
    foreign: JsonObject = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAABforeign", "content": None}
    world.engine.play(text("Yes."))
    await world.turn(user("one"), foreign, user("two"))
    assert texts(world.engine.posts[-1]) == ["one", "two"]


@pytest.mark.parametrize("blob", [PREFIX + "AAAA", PREFIX, PREFIX + "ü", RULES.seals.seal("bob", "reasoning", b"{}")])
async def test_reasoning_that_was_changed_is_refused(world: World, blob: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await world.turn(user("one"), {"type": "reasoning", "summary": [], "encrypted_content": blob})
    assert caught.value.param == "input[1].encrypted_content"


@pytest.mark.parametrize("kind", ["reasoning", "compaction"])
async def test_encrypted_content_is_a_string(world: World, kind: str) -> None:
    for wrong in (5, ["x"], {"x": 1}):
        with pytest.raises(InvalidRequest) as caught:
            await world.turn({"type": kind, "summary": [], "encrypted_content": wrong})
        assert caught.value.param == "input[0].encrypted_content"


async def test_what_an_engine_sealed_itself_is_left_as_it_is(world: World) -> None:
    world.engine.play(reasoning("Hm.", encrypted_content="opaque") + text("Yes."))
    turned = await world.turn(user("well?"), **ASKED)  # type: ignore[arg-type]
    assert turned.output[0]["encrypted_content"] == "opaque"
    assert json.dumps(turned.output).count("opaque") == 1
