"""A trace is taken from headers only when well formed; metrics are one page, also for several processes."""

import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from svckit.telemetry import Trace, bind_trace, current_trace, metrics_page, open_metrics_listener, trace_of
from tests.svckit.scripted import Reply, wired

TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"


def test_a_well_formed_trace_is_kept() -> None:
    assert trace_of({"x-request-id": "abc-1", "traceparent": TRACEPARENT}) == Trace("abc-1", TRACEPARENT)


@pytest.mark.parametrize("request_id", ["", "a b", "a\n", "ä", "x" * 129])
def test_a_request_id_that_is_missing_or_strange_is_made_anew(request_id: str) -> None:
    first, second = trace_of({"x-request-id": request_id}), trace_of({"x-request-id": request_id})
    assert first.request_id.startswith("req_")
    assert first.request_id != second.request_id


@pytest.mark.parametrize("traceparent", ["", "1", TRACEPARENT + "\n", TRACEPARENT.upper()])
def test_a_traceparent_that_is_not_well_formed_is_left_out(traceparent: str) -> None:
    assert trace_of({"x-request-id": "a", "traceparent": traceparent}) == Trace("a", None)


async def test_the_bound_trace_is_the_current_one_and_travels_as_metadata() -> None:
    assert current_trace().metadata() == ()
    bind_trace(Trace("a", TRACEPARENT))
    assert current_trace().metadata() == (("x-request-id", "a"), ("traceparent", TRACEPARENT))


async def test_the_metrics_listener_shows_the_calls_that_were_counted() -> None:
    async def ok(request: object, context: object) -> Reply:
        return Reply()

    async with wired("reference") as wire:
        wire.service.unary = ok
        await wire.get()
    async with open_metrics_listener("127.0.0.1:0") as address, aiohttp.ClientSession() as session:
        async with session.get(f"http://{address}/healthz") as answer:
            assert answer.status == 200
        async with session.get(f"http://{address}/metrics") as answer:
            page = await answer.text()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    labels = [sample.labels for sample in families["turnkeep_rpc_seconds"].samples if sample.name.endswith("_count")]
    assert {"method": "/turnkeep.history.v1.HistoryService/GetResponse", "code": "OK"} in labels


def test_processes_that_share_a_directory_share_one_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    counting = "from prometheus_client import Counter; Counter('turnkeep_shop_sales_total', 'Sales.').inc(2)"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", counting], check=True)
    assert b"turnkeep_shop_sales_total 4.0" in metrics_page()
