"""What operators see: health, readiness, metrics, request ids, CORS; and the edge over real gRPC sockets."""

import asyncio
import signal
import sys

import msgspec
import pytest
from aiohttp import ClientSession

from http_edge.app import open_edge
from http_edge.metrics import REQUESTS
from http_edge.settings import EdgeSettings, Settings
from svckit.grpc_server import open_server
from svckit.settings import GrpcSettings
from tests.http_edge.fake_services import (
    RESPONSE_ID,
    FakeHistory,
    FakeOrchestrator,
    House,
    history_services,
    open_house,
    orchestrator_services,
    stored,
    turn_events,
)

ORIGIN = {"Origin": "https://ada.example"}
PREFLIGHT = ORIGIN | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, x-own"}


@pytest.mark.parametrize(("database", "engine", "status"), [(True, True, 200), (True, False, 503), (False, True, 503), (False, False, 503)])
async def test_readiness_names_what_is_missing_and_liveness_does_not_care(house: House, database: bool, engine: bool, status: int) -> None:
    house.history.is_serving, house.orchestrator.is_serving = database, engine
    answer = await house.http.get("/readyz")
    words = {True: "ok", False: "not_serving"}
    assert answer.status == status
    assert await answer.json() == {
        "status": "ready" if status == 200 else "not_ready",
        "checks": {"database": words[database], "engine": words[engine]},
    }
    assert (await house.http.get("/healthz")).status == 200


async def test_services_that_are_not_there_do_not_stop_the_start(tmp_path) -> None:
    nowhere = f"unix:{tmp_path}/none"
    settings = Settings(edge=EdgeSettings(port=0, history=nowhere, orchestrator=nowhere, history_timeout_seconds=0.2))
    async with open_edge(settings) as edge, ClientSession(edge.url) as http:
        assert (await http.get("/healthz")).status == 200
        answer = await http.get("/readyz")
        assert (answer.status, (await answer.json())["checks"]) == (503, {"database": "unreachable", "engine": "unreachable"})
        for answer in (
            await http.post("/v1/responses", json={"model": "m", "input": "x"}),
            await http.post("/v1/responses", json={"model": "m", "input": "x", "stream": True}),
            await http.post("/v1/chat/completions", json={}),
            await http.get("/v1/models"),
            await http.get(f"/v1/responses/{RESPONSE_ID}"),
            await http.delete(f"/v1/responses/{RESPONSE_ID}"),
        ):
            assert answer.status in (503, 504)
            assert str(tmp_path) not in await answer.text()


async def test_the_edge_works_the_same_over_sockets(tmp_path) -> None:
    history, orchestrator = FakeHistory(), FakeOrchestrator()
    history.responses["default", RESPONSE_ID] = stored({"object": "response"})
    grpc = GrpcSettings(token="between-services")
    paths = f"unix:{tmp_path}/h", f"unix:{tmp_path}/o"
    settings = Settings(edge=EdgeSettings(port=0, history=paths[0], orchestrator=paths[1], drain_seconds=0.2), grpc=grpc)
    async with (
        open_server(history_services(history), paths[0], grpc, 0),
        open_server(orchestrator_services(orchestrator), paths[1], grpc, 0),
        open_edge(settings) as edge,
        ClientSession(edge.url) as http,
    ):
        assert (await http.get("/readyz")).status == 200
        assert (await http.get(f"/v1/responses/{RESPONSE_ID}")).status == 200
        assert (await http.get(f"/v1/responses/{RESPONSE_ID[:-1]}9")).status == 404
        streamed = await (await http.post("/v1/responses", json={"model": "m", "input": "x", "stream": True})).read()
        assert streamed.endswith(turn_events("Hello")[-1].data + b"\n\ndata: [DONE]\n\n")


async def test_it_runs_alone_until_it_is_asked_to_stop(tmp_path) -> None:
    config = tmp_path / "turnkeep.toml"
    config.write_text(f'[edge]\nport = 0\nhistory = "unix:{tmp_path}/h"\norchestrator = "unix:{tmp_path}/o"\n')
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "http_edge", "--config", str(config), stdout=asyncio.subprocess.PIPE
    )
    try:
        ready = (await asyncio.wait_for(process.stdout.readline(), 30)).decode()
        async with ClientSession(ready.split()[-1]) as http:
            assert (await http.get("/healthz")).status == 200
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 30) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_metrics_are_one_page(house: House) -> None:
    await (await house.create({"model": "m", "input": "hi", "stream": True})).read()
    await house.create({"model": "m", "input": "hi", "store": False})
    await house.http.get("/nowhere")
    async with house.connect() as socket:
        await socket.send_json({"type": "response.create", "model": "m", "input": "hi"})
        while "response.completed" not in (await socket.receive_str(timeout=10))[:40]:
            pass
    async with asyncio.timeout(10):
        while not REQUESTS.labels("/v1/responses", "GET", 101)._value.get():
            await asyncio.sleep(0)
    page = await (await house.http.get("/metrics")).text()
    for line in (
        'turnkeep_edge_requests_total{method="POST",route="/v1/responses",status="200"}',
        'turnkeep_edge_requests_total{method="GET",route="unmatched",status="404"}',
        "turnkeep_edge_requests_in_flight ",
        "turnkeep_edge_first_event_seconds_count",
        "turnkeep_edge_event_gap_seconds_count",
        "turnkeep_edge_stream_bytes_total",
        'turnkeep_edge_relayed_total{path="/v1/responses",status="200"}',
        'turnkeep_edge_requests_total{method="GET",route="/v1/responses",status="101"}',
        'turnkeep_edge_websocket_turns_total{end="ended"}',
        "turnkeep_edge_websockets ",
        "turnkeep_edge_retained_bytes ",
        "turnkeep_edge_viewers ",
    ):
        assert line in page


async def test_a_sane_request_id_is_kept_and_travels(house: House) -> None:
    answer = await house.create(
        {"model": "m", "input": "hi", "stream": True}, headers={"x-request-id": "mine-1", "traceparent": TRACEPARENT}
    )
    await answer.read()
    assert answer.headers["x-request-id"] == "mine-1"
    [metadata] = house.orchestrator.metadata
    assert (metadata["x-request-id"], metadata["traceparent"]) == ("mine-1", TRACEPARENT)


@pytest.mark.parametrize("odd", ["", "a b", "é", "x" * 200])
async def test_any_other_request_id_is_replaced(house: House, odd: str) -> None:
    answer = await house.http.get("/nowhere", headers={"x-request-id": odd})
    assert answer.headers["x-request-id"].startswith("req_")


async def test_without_the_setting_no_origin_is_allowed(house: House) -> None:
    answer = await house.http.get("/healthz", headers=ORIGIN)
    preflight = await house.http.options("/v1/responses", headers=PREFLIGHT)
    assert not any(name.lower().startswith("access-control-") for name in (*answer.headers, *preflight.headers))


@pytest.mark.parametrize(("origins", "shown"), [(("https://ada.example",), "https://ada.example"), (("*",), "*")])
async def test_an_allowed_origin_may_ask_and_read_errors_and_streams(origins: tuple[str, ...], shown: str) -> None:
    async with open_house(api_keys={"ada": "sk-ada"}, cors_origins=origins) as house:
        preflight = await house.http.options("/v1/responses", headers=PREFLIGHT)
        assert preflight.status == 204
        assert preflight.headers["access-control-allow-headers"] == "authorization, x-own"
        assert "POST" in preflight.headers["access-control-allow-methods"]
        refused = await house.create({}, headers=ORIGIN)
        stream = await house.create({"model": "m", "input": "hi", "stream": True}, headers=ORIGIN | {"x-api-key": "sk-ada"})
        assert (refused.status, stream.status) == (401, 200)
        for answer in (preflight, refused, stream):
            assert answer.headers["access-control-allow-origin"] == shown
            assert "Origin" in answer.headers.getall("vary")


async def test_another_origin_is_not_allowed() -> None:
    async with open_house(cors_origins=("https://ada.example",)) as house:
        answer = await house.http.options("/v1/responses", headers=PREFLIGHT | {"Origin": "https://eve.example"})
        assert not any(name.lower().startswith("access-control-") for name in answer.headers)


async def test_probes_and_metrics_ask_for_no_key() -> None:
    async with open_house(api_keys={"ada": "sk-ada"}) as house:
        assert [(await house.http.get(path)).status for path in ("/healthz", "/readyz", "/metrics")] == [200] * 3


async def test_json_answers_say_so(house: House) -> None:
    for path in ("/healthz", "/readyz", "/nowhere"):
        answer = await house.http.get(path)
        assert answer.content_type == "application/json"
        msgspec.json.decode(await answer.read())


TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
