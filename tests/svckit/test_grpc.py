"""What only a real socket can show: pings, cut connections, restarts, doors, TLS; and health and reflection."""

import asyncio
import struct
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from svckit.errors import RemoteError, ServiceError
from svckit.grpc_client import Caller, open_channel
from svckit.grpc_server import Services, add_health, open_server
from svckit.settings import GrpcSettings, SettingsError
from tests.fakes.certificates import certificate_for
from tests.svckit.cutting_proxy import open_proxy
from tests.svckit.scripted import PATIENCE, LoadRequest, Part, Reply, Request, ScriptedHistory, part, soon, texts, wired
from turnkeep.history.v1 import history_pb2_grpc

TRUSTING = GrpcSettings()
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory with a path short enough for a unix socket."""
    with tempfile.TemporaryDirectory(prefix="tk") as path:
        yield Path(path)


def services_of(service: ScriptedHistory, settings: GrpcSettings = TRUSTING) -> Services:
    services = Services(settings)
    services.add(history_pb2_grpc.add_HistoryServiceServicer_to_server, service)
    return services


async def ok(request: Request, context: grpc.aio.ServicerContext) -> Reply:
    return Reply(body=b"{}")


async def two_parts(request: LoadRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[Part]:
    yield part("one")
    yield part("two")


async def test_the_bound_address_is_given_back(directory: Path) -> None:
    async with open_server(services_of(ScriptedHistory()), "127.0.0.1:0", TRUSTING, 0) as address:
        assert address.startswith("127.0.0.1:")
        assert not address.endswith(":0")
    async with open_server(services_of(ScriptedHistory()), f"unix:{directory}/s", TRUSTING, 0) as address:
        assert address == f"unix:{directory}/s"


async def test_a_taken_port_is_refused(directory: Path) -> None:
    async with open_server(services_of(ScriptedHistory()), "127.0.0.1:0", TRUSTING, 0) as address:
        with pytest.raises(SettingsError):
            async with open_server(services_of(ScriptedHistory()), address, TRUSTING, 0):
                pass


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "history:9001", ":9001"])
async def test_an_address_open_to_other_machines_needs_a_secret(listen: str) -> None:
    with pytest.raises(SettingsError):
        async with open_server(services_of(ScriptedHistory()), listen, TRUSTING, 0):
            pass


async def test_with_a_token_any_address_may_be_bound() -> None:
    settings = GrpcSettings(token="s3cret")
    async with open_server(services_of(ScriptedHistory(), settings), "0.0.0.0:0", settings, 0) as address:
        assert address.startswith("0.0.0.0:")


async def test_pings_at_any_rate_do_not_end_a_connection() -> None:
    """B129: 50 pings on an idle connection are all acknowledged, and no GOAWAY comes."""
    async with open_server(services_of(ScriptedHistory()), "127.0.0.1:0", TRUSTING, 0) as address:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS))
        for number in range(50):
            writer.write(frame(PING, struct.pack(">Q", number)))
        kinds = []
        while kinds.count(PING_ACK) < 50:
            kinds.append(await asyncio.wait_for(next_frame(reader), PATIENCE))
        assert GOAWAY not in kinds
        writer.close()


SETTINGS, PING, GOAWAY = (4, 0), (6, 0), (7, 0)
PING_ACK = (6, 1)


def frame(kind: tuple[int, int], payload: bytes = b"") -> bytes:
    """An HTTP/2 frame of the connection: length, type, flags, stream 0."""
    return len(payload).to_bytes(3, "big") + bytes(kind) + bytes(4) + payload


async def next_frame(reader: asyncio.StreamReader) -> tuple[int, int]:
    head = await reader.readexactly(9)
    await reader.readexactly(int.from_bytes(head[:3], "big"))
    return head[3], head[4]


@asynccontextmanager
async def cut_after_the_first_request(service: ScriptedHistory) -> AsyncIterator[history_pb2_grpc.HistoryServiceStub]:
    """A stub whose connection is cut when the service has the first request, before its reply."""
    async with (
        open_server(services_of(service), "127.0.0.1:0", TRUSTING, 0) as address,
        open_proxy(address) as proxy,
        open_channel(proxy.address, TRUSTING) as channel,
    ):
        served = 0

        async def cut_once(request: Request, context: grpc.aio.ServicerContext) -> Reply:
            nonlocal served
            served += 1
            if served == 1:
                proxy.cut()
            return Reply(body=str(served).encode())

        service.unary = cut_once
        yield history_pb2_grpc.HistoryServiceStub(channel)


async def test_a_write_whose_reply_was_lost_is_not_sent_again() -> None:
    """B132: nobody but the caller's user knows whether a repeat is safe."""
    async with cut_after_the_first_request(ScriptedHistory()) as stub:
        with pytest.raises(RemoteError) as raised:
            await Caller(TRUSTING).unary(stub.GetResponse, Request(), PATIENCE)
        assert raised.value.status is grpc.StatusCode.UNAVAILABLE
        assert (await Caller(TRUSTING).unary(stub.GetResponse, Request(), PATIENCE)).body == b"2"


async def test_an_idempotent_call_whose_reply_was_lost_is_sent_again() -> None:
    """B132: with an id made by the client, a repeat is a no-op for the service."""
    async with cut_after_the_first_request(ScriptedHistory()) as stub:
        assert (await Caller(TRUSTING).unary(stub.GetResponse, Request(), PATIENCE, idempotent=True)).body == b"2"


async def test_reads_outlive_a_restart_of_the_service(directory: Path) -> None:
    """B133: a read that meets a dead service waits for the new one; the channel recovers by itself."""
    service, listen = ScriptedHistory(), f"unix:{directory}/s"
    service.unary, service.stream = ok, two_parts
    async with open_channel(listen, TRUSTING) as channel:
        stub, caller = history_pb2_grpc.HistoryServiceStub(channel), Caller(TRUSTING)
        async with open_server(services_of(service), listen, TRUSTING, 0):
            await caller.unary(stub.GetResponse, Request(), PATIENCE)
        with pytest.raises(RemoteError) as raised:
            await caller.unary(stub.GetResponse, Request(), PATIENCE)
        assert raised.value.status is grpc.StatusCode.UNAVAILABLE
        reading = asyncio.create_task(caller.unary(stub.GetResponse, Request(), PATIENCE, idempotent=True))
        loading = asyncio.create_task(loaded(caller, stub, idempotent=True))
        async with open_server(services_of(service), listen, TRUSTING, 0):
            assert (await reading).body == b"{}"
            assert await loading == ["one", "two"]


async def loaded(caller: Caller, stub: history_pb2_grpc.HistoryServiceStub, idempotent: bool) -> list[str]:
    async with caller.stream(stub.LoadContext, LoadRequest(), PATIENCE, idempotent=idempotent) as parts:
        return texts([one async for one in parts])


class Overloaded(ServiceError):
    """Try again."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "database_unavailable"


async def test_an_idempotent_call_is_repeated_until_its_deadline_and_then_fails_as_what_it_is() -> None:
    async with wired("reference") as wire:
        calls = 0

        async def fail(request: Request, context: grpc.aio.ServicerContext) -> Reply:
            nonlocal calls
            calls += 1
            raise Overloaded()

        wire.service.unary = fail
        with pytest.raises(RemoteError) as raised:
            await wire.caller.unary(wire.stub.GetResponse, Request(), 0.3, idempotent=True)
        assert raised.value.reason == "database_unavailable"
        assert calls > 1


async def test_an_idempotent_stream_is_repeated_only_before_its_first_message() -> None:
    async with wired("reference") as wire:
        calls = 0

        async def fail_twice(request: LoadRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[Part]:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise Overloaded()
            yield part("one")
            raise Overloaded()

        wire.service.stream = fail_twice
        with pytest.raises(RemoteError) as raised:
            await loaded(wire.caller, wire.stub, idempotent=True)
        assert (raised.value.reason, calls) == ("database_unavailable", 2)


@pytest.mark.parametrize("way", ["tcp", "reference"])
@pytest.mark.parametrize("message", ["错误" * 10_000, "x" * 20_000, "\ud83d lone", "a\nb\x00c"])
async def test_long_and_strange_error_details_do_not_hide_the_status(way: str, message: str) -> None:
    """B136: 20 kB or CJK details arrive bounded, with the code and the reason."""
    async with wired(way) as wire:

        async def fail(request: Request, context: grpc.aio.ServicerContext) -> Reply:
            raise Overloaded(message, param=message)

        wire.service.unary = fail
        with pytest.raises(RemoteError) as raised:
            await wire.get()
        assert (raised.value.status, raised.value.reason) == (grpc.StatusCode.UNAVAILABLE, "database_unavailable")
        assert len(raised.value.message) <= 1000


class Probes:
    """A probe that answers as told and counts how often it is asked."""

    def __init__(self) -> None:
        self.well = True
        self.asked = 0

    async def __call__(self) -> bool:
        self.asked += 1
        if not self.well:
            raise ConnectionError("gone")
        return True


@asynccontextmanager
async def health_of(**probes: Probes) -> AsyncIterator[health_pb2_grpc.HealthStub]:
    services = services_of(ScriptedHistory())
    add_health(services, probes)
    async with open_server(services, "127.0.0.1:0", TRUSTING, PATIENCE) as address, open_channel(address, TRUSTING) as channel:
        yield health_pb2_grpc.HealthStub(channel)


async def check(stub: health_pb2_grpc.HealthStub, service: str = "") -> int:
    reply = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE)
    return reply.status


async def test_health_asks_the_probes_and_the_empty_name_means_all() -> None:
    database, engine = Probes(), Probes()
    engine.well = False
    async with health_of(database=database, engine=engine) as stub:
        assert await check(stub, "database") == SERVING
        assert await check(stub, "engine") == NOT_SERVING
        assert await check(stub) == NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await check(stub, "nobody")
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND


async def test_an_answer_of_a_probe_is_kept_for_a_moment() -> None:
    database = Probes()
    async with health_of(database=database) as stub:
        assert [await check(stub) for _ in range(5)] == [SERVING] * 5
    assert database.asked < 5


async def test_a_watch_tells_every_change() -> None:
    database = Probes()
    async with health_of(database=database) as stub:
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="database"))
        assert (await watch.read()).status == SERVING
        database.well = False
        assert (await asyncio.wait_for(watch.read(), PATIENCE)).status == NOT_SERVING
        watch.cancel()


async def test_a_watch_hears_of_the_stop_and_does_not_hold_it_up() -> None:
    async with wired("tcp", grace=60) as wire:
        watch = health_pb2_grpc.HealthStub(wire.channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        stopping = asyncio.create_task(wire.stop())
        assert (await watch.read()).status == NOT_SERVING
        await soon(stopping)


async def test_health_needs_no_probes() -> None:
    async with wired("tcp") as wire:
        assert await check(health_pb2_grpc.HealthStub(wire.channel)) == SERVING


async def test_reflection_names_the_services() -> None:
    async with wired("tcp") as wire:
        stub = reflection_pb2_grpc.ServerReflectionStub(wire.channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        names = {service.name for service in (await call.read()).list_services_response.service}
        call.cancel()
    assert {"turnkeep.history.v1.HistoryService", "grpc.health.v1.Health"} <= names


async def test_with_a_token_health_and_reflection_ask_for_it_too() -> None:
    async with wired("tcp", settings=GrpcSettings(token="s3cret")) as wire:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await check(health_pb2_grpc.HealthStub(wire.channel))
        assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await reflection_pb2_grpc.ServerReflectionStub(wire.channel).ServerReflectionInfo(iter([])).read()
        assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.fixture
def tls(directory: Path) -> GrpcSettings:
    """One self-signed certificate for localhost, which is its own authority."""
    certificate, key = map(str, certificate_for(directory, "localhost", "127.0.0.1"))
    return GrpcSettings(tls_certificate=certificate, tls_key=key, tls_authority=certificate)


async def test_with_tls_files_both_sides_show_their_certificate(tls: GrpcSettings) -> None:
    async with wired("tcp", settings=tls) as wire:
        wire.service.unary = ok
        assert (await wire.get()).body == b"{}"


async def test_with_tls_files_a_caller_without_certificate_is_not_served(tls: GrpcSettings) -> None:
    without = GrpcSettings(tls_authority=tls.tls_authority)
    service = ScriptedHistory()
    service.unary = ok
    async with open_server(services_of(service, tls), "127.0.0.1:0", tls, 0) as address, open_channel(address, without) as channel:
        with pytest.raises(RemoteError) as raised:
            await Caller(without).unary(history_pb2_grpc.HistoryServiceStub(channel).GetResponse, Request(), PATIENCE)
        assert raised.value.status is grpc.StatusCode.UNAVAILABLE


async def test_tls_files_that_are_missing_are_named(directory: Path) -> None:
    settings = GrpcSettings(tls_certificate=str(directory / "none.pem"), tls_key=str(directory / "none.key"))
    with pytest.raises(SettingsError) as raised:
        async with open_server(services_of(ScriptedHistory()), "127.0.0.1:0", settings, 0):
            pass
    assert raised.value.key == "grpc.tls_key"


async def test_an_exception_while_a_cancelled_handler_cleans_up_does_no_harm() -> None:
    async with wired("tcp") as wire:
        inside, left = asyncio.Event(), asyncio.Event()

        async def untidy(request: Request, context: grpc.aio.ServicerContext) -> Reply:
            try:
                inside.set()
                await asyncio.Event().wait()
            finally:
                left.set()
                raise LookupError("while leaving")

        wire.service.unary = untidy
        call = wire.stub.GetResponse(Request())
        await soon(inside.wait())
        call.cancel()
        await soon(left.wait())
        wire.service.unary = ok
        assert (await wire.get()).body == b"{}"
