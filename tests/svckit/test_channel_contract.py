"""What a call does is the same on every channel: by reference, copying, over a unix socket and over TCP."""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import cast

import grpc
import pytest
from structlog.contextvars import bind_contextvars, get_contextvars

from svckit.errors import RemoteError, ServiceError
from svckit.grpc_client import Caller
from svckit.grpc_server import MAX_MESSAGE_BYTES, hand_over_of
from svckit.settings import GrpcSettings
from svckit.telemetry import Trace, bind_trace, current_trace
from tests.fakes.garbage import collected
from tests.svckit.scripted import LOCAL_WAYS, PATIENCE, WAYS, LoadRequest, Part, Reply, Request, Wired, Words, part, soon, texts, wired
from turnkeep.history.v1.history_pb2 import DeleteResponseRequest

MIB = 1024 * 1024

place: contextvars.ContextVar[str] = contextvars.ContextVar("place", default="nowhere")


class Missing(ServiceError):
    """Nothing called '{name}' here: 这里没有，非常抱歉."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "nothing_here"
    param = "name"


@pytest.fixture(params=WAYS)
async def wire(request: pytest.FixtureRequest) -> AsyncIterator[Wired]:
    async with wired(request.param) as one:
        yield one


async def ok(request: Request, context: grpc.aio.ServicerContext) -> Reply:
    return Reply(body=b"{}")


class Visit:
    """A handler that comes in, waits for ever, and tells when it was in and when it got out."""

    def __init__(self) -> None:
        self.inside = asyncio.Event()
        self.left = asyncio.Event()
        self.opened = asyncio.Event()

    async def unary(self, request: Request, context: grpc.aio.ServicerContext) -> Reply:
        try:
            self.inside.set()
            await self.opened.wait()
            return Reply(body=b"late")
        finally:
            self.left.set()

    async def stream(self, request: LoadRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[Part]:
        yield part("first")
        await self.unary(Request(), context)


async def test_a_unary_call_brings_the_request_there_and_the_reply_back(wire: Wired) -> None:
    async def echo(request: Request, context: grpc.aio.ServicerContext) -> Reply:
        return Reply(body=f"{request.owner} {request.response_id}".encode())

    wire.service.unary = echo
    assert await wire.get(Request(owner="ada", response_id="r1")) == Reply(body=b"ada r1")


async def test_a_stream_brings_every_message_in_order(wire: Wired) -> None:
    async def count(request: LoadRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[Part]:
        for number in range(300):
            yield part(str(number))

    wire.service.stream = count
    assert texts(await wire.loaded()) == [str(number) for number in range(300)]


async def test_an_empty_stream_just_ends(wire: Wired) -> None:
    async def nothing(request: LoadRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[Part]:
        return
        yield

    wire.service.stream = nothing
    assert await wire.loaded() == []


async def test_an_error_of_ours_arrives_whole_with_non_ascii_details(wire: Wired) -> None:
    async def fail(request: Request, context: grpc.aio.ServicerContext) -> Reply:
        raise Missing(name="Zoë", headers={"Retry-After": "3"})

    wire.service.unary = fail
    with pytest.raises(RemoteError) as raised:
        await wire.get()
    assert raised.value.status is grpc.StatusCode.NOT_FOUND
    assert raised.value.reason == "nothing_here"
    assert raised.value.param == "name"
    assert raised.value.headers == {"retry-after": "3"}
    assert raised.value.message == "Nothing called 'Zoë' here: 这里没有，非常抱歉."


async def test_a_call_that_failed_leaves_nothing_for_the_collector(wire: Wired) -> None:
    """What frames hold of a large request would stay until it looks."""

    async def fail(request: Request, context: grpc.aio.ServicerContext) -> Reply:
        kept = Missing(name="x")
        raise kept

    async def fail_later(request: LoadRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[Part]:
        yield part("first")
        await fail(Request(), context)

    async def calls() -> None:
        for call in (wire.get, wire.loaded):
            with suppress(RemoteError):
                await call()
        await asyncio.sleep(0.05)

    wire.service.unary, wire.service.stream = fail, fail_later
    await calls()
    with collected() as found:
        await calls()
    assert sorted(found) == []


async def test_abort_brings_status_details_and_trailing_metadata(wire: Wired) -> None:
    async def fail(request: Request, context: grpc.aio.ServicerContext) -> Reply:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "später", (("hint", "x"), ("raw-bin", b"\x00\xff")))

    wire.service.unary = fail
    call = wire.stub.GetResponse(Request(), timeout=PATIENCE)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    error = raised.value
    assert (error.code(), error.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "später")
    assert {("hint", "x"), ("raw-bin", b"\x00\xff")} <= set(error.trailing_metadata())
    assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert await call.details() == "später"


async def test_what_a_handler_sends_in_metadata_arrives(wire: Wired) -> None:
    async def answer(request: Request, context: grpc.aio.ServicerContext) -> Reply:
        await context.send_initial_metadata((("early", "1"),))
        context.set_trailing_metadata((("late", "2"),))
        return Reply(body=dict(context.invocation_metadata())["asked"].encode())

    wire.service.unary = answer
    call = wire.stub.GetResponse(Request(), timeout=PATIENCE, metadata=(("asked", "0"),))
    assert (await call).body == b"0"
    assert ("early", "1") in tuple(await call.initial_metadata())
    assert ("late", "2") in tuple(await call.trailing_metadata())
    assert await call.code() is grpc.StatusCode.OK


async def test_an_unknown_exception_is_masked(wire: Wired) -> None:
    async def fail(request: Request, context: grpc.aio.ServicerContext) -> Reply:
        raise LookupError("the password is hunter2")

    wire.service.unary = fail
    with pytest.raises(RemoteError) as raised:
        await wire.get()
    assert (raised.value.status, raised.value.reason) == (grpc.StatusCode.INTERNAL, "internal_error")
    assert "hunter2" not in raised.value.message


@pytest.mark.parametrize("after", [0, 1])
async def test_a_stream_handler_that_raises_cancelled_error_by_itself_is_internal(wire: Wired, after: int) -> None:
    """B130: without the guard the caller of such a handler waits for ever."""

    async def give_up(request: LoadRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[Part]:
        for _ in range(after):
            yield part("x")
        raise asyncio.CancelledError

    wire.service.stream = give_up
    with pytest.raises(RemoteError) as raised:
        await wire.loaded()
    assert (raised.value.status, raised.value.reason) == (grpc.StatusCode.INTERNAL, "internal_error")


async def test_a_handler_that_raises_cancelled_error_by_itself_is_internal(wire: Wired) -> None:
    """B130: without the guard the caller of such a handler waits for ever."""

    async def give_up(request: Request, context: grpc.aio.ServicerContext) -> Reply:
        raise asyncio.CancelledError

    wire.service.unary = give_up
    with pytest.raises(RemoteError) as raised:
        await wire.get()
    assert (raised.value.status, raised.value.reason) == (grpc.StatusCode.INTERNAL, "internal_error")


async def test_a_passed_deadline_ends_the_call_and_reaches_the_handlers_finally(wire: Wired) -> None:
    visit = Visit()
    wire.service.unary = visit.unary
    with pytest.raises(RemoteError) as raised:
        await wire.get(deadline=0.1)
    assert raised.value.status is grpc.StatusCode.DEADLINE_EXCEEDED
    await soon(visit.left.wait())


async def test_a_passed_deadline_ends_a_stream_and_reaches_the_handlers_finally(wire: Wired) -> None:
    visit = Visit()
    wire.service.stream = visit.stream
    with pytest.raises(RemoteError) as raised:
        async with wire.load(deadline=0.2) as parts:
            _ = [one async for one in parts]
    assert raised.value.status is grpc.StatusCode.DEADLINE_EXCEEDED
    await soon(visit.left.wait())


async def test_a_handler_sees_how_much_time_it_has(wire: Wired) -> None:
    async def answer(request: Request, context: grpc.aio.ServicerContext) -> Reply:
        return Reply(body=b"in time" if 0 < context.time_remaining() <= 101 else b"no")

    wire.service.unary = answer
    assert (await wire.get(deadline=100)).body == b"in time"


async def test_cancelling_the_callers_task_reaches_the_handlers_finally(wire: Wired) -> None:
    visit = Visit()
    wire.service.unary = visit.unary
    task = asyncio.create_task(wire.get())
    await soon(visit.inside.wait())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await soon(visit.left.wait())


async def test_cancelling_the_readers_task_reaches_the_stream_handlers_finally(wire: Wired) -> None:
    visit = Visit()
    wire.service.stream = visit.stream
    task = asyncio.create_task(wire.loaded())
    await soon(visit.inside.wait())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await soon(visit.left.wait())


async def test_cancelling_the_call_reaches_the_handlers_finally(wire: Wired) -> None:
    visit = Visit()
    wire.service.unary = visit.unary
    call = wire.stub.GetResponse(Request(), timeout=PATIENCE)
    await soon(visit.inside.wait())
    assert call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert call.cancelled()
    assert not call.cancel()
    await soon(visit.left.wait())


async def test_a_call_broken_off_by_others_is_unavailable_and_no_cancellation_of_the_caller(wire: Wired) -> None:
    visit = Visit()
    wire.service.unary = visit.unary
    calls: list[grpc.aio.Call] = []

    def remembered(request: Request, **options: object) -> grpc.aio.Call:
        calls.append(wire.stub.GetResponse(request, **options))
        return calls[-1]

    task = asyncio.create_task(wire.caller.unary(remembered, Request(), PATIENCE))
    await soon(visit.inside.wait())
    calls[0].cancel()
    with pytest.raises(RemoteError) as raised:
        await task
    assert raised.value.status is grpc.StatusCode.UNAVAILABLE


async def test_a_stream_left_early_reaches_the_finally_of_a_waiting_handler(wire: Wired) -> None:
    visit = Visit()
    wire.service.stream = visit.stream
    async with wire.load() as parts:
        async for one in parts:
            assert texts([one]) == ["first"]
            break
        await soon(visit.inside.wait())
    await soon(visit.left.wait())


async def test_a_stream_left_early_reaches_the_finally_of_a_writing_handler(wire: Wired) -> None:
    left = asyncio.Event()

    async def flood(request: LoadRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[Part]:
        try:
            while True:
                yield part(b"x" * 100_000)
        finally:
            left.set()

    wire.service.stream = flood
    async with wire.load() as parts:
        await anext(parts)
    await soon(left.wait())


async def test_a_contextvar_set_after_the_start_is_not_visible_to_a_handler(wire: Wired) -> None:
    async def look(request: Request, context: grpc.aio.ServicerContext) -> Reply:
        seen = place.get()
        place.set("handler")
        return Reply(body=seen.encode())

    wire.service.unary = look
    place.set("caller")
    assert (await wire.get()).body == b"nowhere"
    assert (await wire.get()).body == b"nowhere"
    assert place.get() == "caller"


async def test_the_trace_reaches_the_handler(wire: Wired) -> None:
    traces: list[Trace] = []

    async def look(request: Request, context: grpc.aio.ServicerContext) -> Reply:
        traces.append(current_trace())
        return Reply()

    wire.service.unary = look
    sent = Trace("req_1", f"00-{'a' * 32}-{'b' * 16}-01")
    bind_trace(sent)
    await wire.get()
    assert traces == [sent]


async def test_the_ids_of_a_call_are_bound_for_its_logs(wire: Wired) -> None:
    async def look(request: Request, context: grpc.aio.ServicerContext) -> Reply:
        return Reply(body=repr(sorted(get_contextvars().items())).encode())

    wire.service.unary = look
    bind_trace(Trace("req_1"))
    bind_contextvars(place="caller")
    assert (await wire.get(Request(owner="ada"))).body == b"[('owner', 'ada'), ('request_id', 'req_1')]"
    assert (await wire.get(Request())).body == b"[('request_id', 'req_1')]"


async def test_messages_sent_before_an_error_arrive_before_it(wire: Wired) -> None:
    async def fail(request: LoadRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[Part]:
        for number in range(3):
            yield part(str(number))
        raise Missing(name="more")

    wire.service.stream = fail
    async with wire.load() as parts:
        assert texts([await anext(parts) for _ in range(3)]) == ["0", "1", "2"]
        with pytest.raises(RemoteError) as raised:
            await anext(parts)
    assert raised.value.reason == "nothing_here"


async def test_a_handler_that_changes_its_request_is_found_out_or_harms_nobody(wire: Wired) -> None:
    async def scribble(request: Request, context: grpc.aio.ServicerContext) -> Reply:
        request.owner = "mallory"
        return Reply()

    wire.service.unary = scribble
    request = Request(owner="ada")
    if wire.way in LOCAL_WAYS:
        with pytest.raises(RemoteError) as raised:
            await wire.get(request)
        assert raised.value.status is grpc.StatusCode.INTERNAL
    else:
        await wire.get(request)
        assert request.owner == "ada"


async def test_messages_of_one_mib_without_a_reader_stop_the_handler(wire: Wired) -> None:
    written = 0
    flooded = asyncio.Event()

    async def flood(request: LoadRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[Part]:
        nonlocal written
        for _ in range(40):
            yield part(b"x" * MIB)
            written += 1
        flooded.set()

    wire.service.stream = flood
    async with wire.load(deadline=60) as parts:
        await anext(parts)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(flooded.wait(), 0.5)
        assert written < 40
        assert len([one async for one in parts]) == 39


async def test_small_messages_without_a_reader_stop_the_handler(wire: Wired) -> None:
    flooded = asyncio.Event()

    async def flood(request: LoadRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[Part]:
        for _ in range(5_000):
            yield part(b"x" * 10_000)
        flooded.set()

    wire.service.stream = flood
    async with wire.load(deadline=60) as parts:
        await anext(parts)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(flooded.wait(), 0.5)


async def read(wire: Wired, told: list[str], take: Callable[[Part], bool]) -> None:
    """Adds all that comes to its reader to `told`, after the first reply as far as it is not taken."""
    async with wire.load() as parts:
        told += texts([await anext(parts)])
        parts.hand_to(take)
        async for one in parts:
            told += texts([one])


async def test_replies_are_handed_over_or_read_and_none_twice_or_out_of_order(wire: Wired) -> None:
    """Whoever takes all it can gets the same from every channel; only where its replies come to it differs."""
    told: list[str] = []
    taken: list[str] = []

    async def count(request: LoadRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[Part]:
        for number in range(300):
            yield part(str(number))
            if number % 10 == 0:
                await asyncio.sleep(0)

    def take(one: Part) -> bool:
        (said,) = texts([one])
        if int(said) % 7 == 0:
            return False
        told.append(said)
        taken.append(said)
        return True

    wire.service.stream = count
    await read(wire, told, take)
    assert told == [str(number) for number in range(300)]
    assert bool(taken) == (wire.way in LOCAL_WAYS)


async def test_what_waits_for_its_reader_is_not_overtaken_by_what_is_handed_over() -> None:
    asked = asyncio.Event()

    async def count(request: LoadRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[Part]:
        for number in range(3):
            yield part(str(number))
        await asked.wait()
        for number in range(3, 6):
            yield part(str(number))

    async with wired("reference") as wire:
        wire.service.stream = count
        told: list[str] = []

        def take(one: Part) -> bool:
            told.extend(texts([one]))
            return True

        async with wire.load() as parts:
            told += texts([await anext(parts)])
            parts.hand_to(take)  # two messages wait already
            asked.set()
            await asyncio.sleep(0.01)
            async for one in parts:
                told += texts([one])
    assert told == [str(number) for number in range(6)]


async def test_a_handler_hands_over_from_a_callback_while_its_next_reply_is_waited_for(wire: Wired) -> None:
    """What the reader does not take, and what comes on a socket, is given as a reply."""
    told: list[str] = []

    def take(one: Part) -> bool:
        (text,) = texts([one])
        if text == "3":
            return False
        told.append(text)
        return True

    async def count(request: LoadRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[Part]:
        hand_over = hand_over_of(context)
        assert (hand_over is not None) == (wire.way in LOCAL_WAYS)
        yield part("0")
        await asyncio.sleep(0.01)  # the reader has it
        left: list[Part] = []
        arrived = asyncio.Event()

        def arrive(number: int) -> None:
            one = part(str(number))
            if left or hand_over is None or not hand_over(one):
                left.append(one)
            if number == 5:
                arrived.set()

        for number in range(1, 6):
            asyncio.get_running_loop().call_soon(arrive, number)
        await arrived.wait()
        for one in left:
            yield one

    wire.service.stream = count
    await read(wire, told, take)
    assert told == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize("fails", [False, True])
async def test_what_is_still_to_come_is_known_in_the_same_process_and_an_end_never_too_early(wire: Wired, fails: bool) -> None:
    async def count(request: LoadRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[Part]:
        for number in range(3):
            yield part(str(number))
        if fails:
            raise Missing(name="end")

    wire.service.stream = count
    ends: list[bool] = []
    behind: list[bool] = []
    async with wire.load() as parts:
        with suppress(RemoteError):
            async for _ in parts:
                behind.append(parts.is_behind)
                ends.append(parts.is_at_end)
    assert behind == [wire.way in LOCAL_WAYS, wire.way in LOCAL_WAYS, False]
    assert ends == [False, False, wire.way in LOCAL_WAYS and not fails]


async def test_a_value_in_place_of_a_message_is_made_one_where_it_is_written(wire: Wired) -> None:
    async def values(request: LoadRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[Part]:
        yield cast("Part", Words("one"))
        yield part("two")

    wire.service.stream = values
    parts = await wire.loaded()
    assert [one.items[0].prompt for one in parts] == [b"one", b"two"]
    assert isinstance(parts[0], Words) == (wire.way == "reference")
    assert isinstance(parts[1], Part)


async def test_a_request_past_64_mib_is_refused_and_the_channel_lives_on(wire: Wired) -> None:
    wire.service.unary = ok
    with pytest.raises(RemoteError) as raised:
        await wire.get(Request(owner="x" * MAX_MESSAGE_BYTES), deadline=60)
    assert raised.value.status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await wire.get()).body == b"{}"


async def test_a_reply_past_64_mib_is_refused(wire: Wired) -> None:
    async def too_much(request: Request, context: grpc.aio.ServicerContext) -> Reply:
        return Reply(body=bytes(MAX_MESSAGE_BYTES))

    wire.service.unary = too_much
    with pytest.raises(RemoteError) as raised:
        await wire.get(deadline=60)
    assert raised.value.status is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_streamed_message_past_64_mib_is_refused(wire: Wired) -> None:
    left = asyncio.Event()

    async def too_much(request: LoadRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[Part]:
        try:
            yield part(bytes(MAX_MESSAGE_BYTES))
            yield part("more")
        finally:
            left.set()

    wire.service.stream = too_much
    with pytest.raises(RemoteError) as raised:
        async with wire.load(deadline=60) as parts:
            _ = [one async for one in parts]
    assert raised.value.status is grpc.StatusCode.RESOURCE_EXHAUSTED
    await soon(left.wait())


async def test_20_mib_pass_both_ways(wire: Wired) -> None:
    """B127: the limit is raised on both sides, in both directions."""

    async def echo(request: Request, context: grpc.aio.ServicerContext) -> Reply:
        return Reply(body=request.owner.encode())

    wire.service.unary = echo
    assert len((await wire.get(Request(owner="x" * 20 * MIB), deadline=60)).body) == 20 * MIB


async def test_a_method_that_nobody_registered_is_unimplemented(wire: Wired) -> None:
    with pytest.raises(RemoteError) as raised:
        await wire.caller.unary(wire.channel.unary_unary("/turnkeep.history.v1.HistoryService/Nope"), b"", PATIENCE)
    assert raised.value.status is grpc.StatusCode.UNIMPLEMENTED


async def test_a_method_that_the_servicer_leaves_out_is_unimplemented(wire: Wired) -> None:
    with pytest.raises(RemoteError) as raised:
        await wire.caller.unary(wire.stub.DeleteResponse, DeleteResponseRequest(), PATIENCE)
    assert (raised.value.status, raised.value.reason) == (grpc.StatusCode.UNIMPLEMENTED, "unimplemented")


@pytest.mark.parametrize("way", WAYS)
async def test_a_stop_with_grace_lets_running_calls_finish_and_takes_no_new_ones(way: str) -> None:
    async with wired(way, grace=PATIENCE) as wire:
        visit = Visit()
        wire.service.unary = visit.unary
        running = asyncio.create_task(wire.get())
        await soon(visit.inside.wait())
        stopping = asyncio.create_task(wire.stop())
        assert await refusal(wire) is grpc.StatusCode.UNAVAILABLE
        visit.opened.set()
        assert (await running).body == b"late"
        await soon(stopping)


async def refusal(wire: Wired) -> grpc.StatusCode:
    """What a new call gets; the call that slips in before the stop has begun only passes its deadline."""
    status = grpc.StatusCode.DEADLINE_EXCEEDED
    while status is grpc.StatusCode.DEADLINE_EXCEEDED:
        with pytest.raises(RemoteError) as raised:
            await wire.get(deadline=0.2)
        status = raised.value.status
    return status


@pytest.mark.parametrize("way", WAYS)
async def test_a_stop_past_its_grace_ends_running_calls_and_reaches_their_finally(way: str) -> None:
    async with wired(way, grace=0.1) as wire:
        visit = Visit()
        wire.service.unary = visit.unary
        running = asyncio.create_task(wire.get())
        await soon(visit.inside.wait())
        await soon(wire.stop())
        with pytest.raises(RemoteError) as ended:
            await running
        assert ended.value.status is grpc.StatusCode.UNAVAILABLE
        await soon(visit.left.wait())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("token", ["", "wrong"])
async def test_with_a_token_set_every_call_must_present_it(way: str, token: str) -> None:
    async with wired(way, settings=GrpcSettings(token="s3cret")) as wire:
        wire.service.unary = ok
        assert (await wire.get()).body == b"{}"
        with pytest.raises(RemoteError) as raised:
            await Caller(GrpcSettings(token=token)).unary(wire.stub.GetResponse, Request(), PATIENCE)
        assert (raised.value.status, raised.value.reason) == (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")


@pytest.mark.parametrize("way", LOCAL_WAYS)
@pytest.mark.parametrize("pair", [("Upper", "x"), ("text", "naïve"), ("text", b"bytes"), ("raw-bin", "text"), ("line", "a\nb")])
async def test_metadata_that_a_socket_would_not_carry_is_refused_in_process_too(way: str, pair: tuple[str, str | bytes]) -> None:
    async with wired(way) as wire:
        wire.service.unary = ok
        with pytest.raises(ValueError, match="metadata was invalid"):
            wire.stub.GetResponse(Request(), metadata=(pair,))
