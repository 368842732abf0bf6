"""Logs are one line per event, whoever wrote it, and carry ids but no secrets."""

import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from structlog.contextvars import bound_contextvars

from svckit import logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return [json.loads(line) for line in captured.err.splitlines()]


def test_an_event_is_one_json_line_with_the_bound_ids(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    with bound_contextvars(request_id="req_1", owner="ada"):
        logs.get_logger("shop").info("sold", count=3, tokens=5, tree_key=7)
    (line,) = lines(capsys)
    assert line.pop("timestamp")
    assert line == {
        "event": "sold",
        "level": "info",
        "module": "shop",
        "count": 3,
        "tokens": 5,
        "tree_key": 7,
        "request_id": "req_1",
        "owner": "ada",
    }


def test_events_below_the_level_are_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("warning", "json")
    logs.get_logger("shop").info("quiet")
    logs.get_logger("shop").warning("loud")
    assert [line["event"] for line in lines(capsys)] == ["loud"]


def test_what_libraries_log_comes_out_in_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    logging.getLogger("aiohttp").warning("odd %s", "thing")
    logging.getLogger("aiohttp").debug("noise")
    (line,) = lines(capsys)
    assert (line["event"], line["level"], line["logger"]) == ("odd thing", "warning", "aiohttp")


@pytest.mark.parametrize("format", ["json", "console"])
def test_secrets_do_not_leave_the_process(capsys: pytest.CaptureFixture[str], format: str) -> None:
    logs.configure("info", format)
    logs.get_logger("shop").info(
        "opened",
        Authorization="Bearer hunter2",
        api_key="hunter2",
        grpc_token="hunter2",
        headers={"x-api-key": "hunter2", "nested": [{"password": "hunter2"}]},
        database_url="postgres://ada:hunter2@db/x",
        reason="cannot reach postgres://ada:hunter2@db/x",
    )
    written = capsys.readouterr().err
    assert "opened" in written
    assert "hunter2" not in written


def test_the_secret_in_a_traceback_s_url_is_masked(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    try:
        raise ConnectionError("postgres://ada:hunter2@db/x")
    except ConnectionError as error:
        logs.get_logger("shop").error("failed", exc_info=error)
    (line,) = lines(capsys)
    assert "ConnectionError" in str(line["exception"])
    assert "hunter2" not in str(line)


@pytest.mark.parametrize("format", ["json", "console"])
def test_no_value_writes_a_line_of_its_own_or_drives_the_terminal(capsys: pytest.CaptureFixture[str], format: str) -> None:
    logs.configure("info", format)
    logs.get_logger("shop").info("one\nforged", name="\x1b[31m red\r\u2028\x9b", owner="a\x00b")
    logging.getLogger("other").warning("two\nforged")
    written = capsys.readouterr().err
    assert len(written.splitlines()) == 2
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for line in written.split("\n") for c in line)
