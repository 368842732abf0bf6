"""The fault proxy carries bytes unchanged until it is told otherwise, over TCP and over unix sockets."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.fault_proxy import REPLY, REQUEST, FaultProxy

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def echo_server() -> AsyncIterator[str]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


@pytest.fixture
async def proxy(echo_server: str) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(echo_server) as proxy:
        yield proxy


async def connect(proxy: FaultProxy) -> Streams:
    return await asyncio.open_connection("127.0.0.1", proxy.port)


async def say(streams: Streams, data: bytes) -> bytes:
    streams[1].write(data)
    return await streams[0].readexactly(len(data))


async def test_it_carries_bytes_unchanged_and_counts_them(proxy: FaultProxy) -> None:
    streams = await connect(proxy)
    data = bytes(range(256)) * 1000
    assert await say(streams, data) == data
    assert proxy.carried == {REQUEST: len(data), REPLY: len(data)}
    assert (proxy.connections, proxy.open_connections) == (1, 1)
    streams[1].close()


@pytest.mark.parametrize(("direction", "arrived"), [(REPLY, b"12345678"), (REQUEST, b"12345678")])
async def test_it_cuts_behind_the_byte_it_was_told(proxy: FaultProxy, direction, arrived: bytes) -> None:
    streams = await connect(proxy)
    await say(streams, b"before")
    proxy.cut(direction, after=8)
    streams[1].write(b"1234")
    await streams[0].readexactly(4)
    streams[1].write(b"567890")
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await streams[0].readexactly(6)
    await proxy.was_cut.wait()
    assert (proxy.cuts, proxy.carried[direction]) == (1, len(arrived))
    assert await say(await connect(proxy), b"again") == b"again"


async def test_it_resets_open_connections_at_once(proxy: FaultProxy) -> None:
    first, second = await connect(proxy), await connect(proxy)
    await say(first, b"a")
    await say(second, b"b")
    proxy.drop_now()
    for streams in (first, second):
        with pytest.raises(ConnectionResetError):
            await streams[0].readexactly(1)
    assert await say(await connect(proxy), b"c") == b"c"


async def test_it_refuses_new_connections_and_takes_them_again(proxy: FaultProxy) -> None:
    open_before = await connect(proxy)
    await say(open_before, b"a")
    await proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        await connect(proxy)
    assert await say(open_before, b"b") == b"b"
    await proxy.heal()
    assert await say(await connect(proxy), b"c") == b"c"


async def test_held_bytes_arrive_when_it_heals(proxy: FaultProxy) -> None:
    streams = await connect(proxy)
    proxy.hold(REPLY)
    answer = asyncio.create_task(say(streams, b"late"))
    while proxy.carried[REQUEST] < 4:
        await asyncio.sleep(0)
    assert not answer.done()
    await proxy.heal()
    assert await answer == b"late"


async def test_delayed_bytes_arrive_too(proxy: FaultProxy) -> None:
    proxy.delay(0.001)
    assert await say(await connect(proxy), b"slow") == b"slow"


async def test_a_peer_that_leaves_is_told_to_the_other(proxy: FaultProxy) -> None:
    streams = await connect(proxy)
    await say(streams, b"a")
    streams[1].write_eof()
    assert await streams[0].read() == b""


async def test_it_stands_between_unix_sockets(echo_server: str, tmp_path: Path) -> None:
    inner, outer = f"unix:{tmp_path}/a", f"unix:{tmp_path}/b"
    async with FaultProxy(echo_server, inner), FaultProxy(inner, outer) as proxy:
        streams = await asyncio.open_unix_connection(outer.removeprefix("unix:"))
        assert await say(streams, b"hello") == b"hello"
        proxy.drop_now()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await streams[0].readexactly(1)


async def test_a_dead_target_ends_the_connection(tmp_path: Path) -> None:
    async with FaultProxy(f"unix:{tmp_path}/nobody") as proxy:
        streams = await connect(proxy)
        assert await streams[0].read() == b""
