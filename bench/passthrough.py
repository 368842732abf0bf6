"""The least that an aiohttp proxy can do: a request goes on as it is, the answer comes back in the chunks in which it arrives.

The yardstick for what a hop costs. Run as a process with the engine's URL, it prints its own.
"""

import argparse
import asyncio

import aiohttp
from aiohttp import web

ENGINE = web.AppKey("engine", str)
SESSION = web.AppKey("session", aiohttp.ClientSession)


async def pass_on(request: web.Request) -> web.StreamResponse:
    """One request there, its answer back."""
    url = request.app[ENGINE] + request.path_qs
    headers = {"content-type": request.headers.get("content-type", "")}
    async with request.app[SESSION].request(request.method, url, headers=headers, data=await request.read()) as answer:
        response = web.StreamResponse(status=answer.status, headers={"content-type": answer.headers["content-type"]})
        await response.prepare(request)
        async for chunk in answer.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
        return response


async def serve(engine: str) -> None:
    """Serves until the process is ended."""
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app[ENGINE] = engine
    app.router.add_route("*", "/{path:.*}", pass_on)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False, read_bufsize=256 * 1024) as app[SESSION]:
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", help="the engine's URL")
    asyncio.run(serve(parser.parse_args().engine))
