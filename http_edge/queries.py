"""The query of a request: which page of a list, what to include, from where to stream."""

from dataclasses import dataclass
from typing import get_args

from aiohttp import web

from http_edge.errors import InvalidRequest, printable
from http_edge.parameters import Includable
from turnkeep.history.v1.history_pb2 import ORDER_ASC, ORDER_DESC, Order

_MAX_CURSOR_CHARS = 128
_MAX_NUMBER = 2**63 - 1
_ORDERS = {"asc": ORDER_ASC, "desc": ORDER_DESC}
_FLAGS = {"true": True, "false": False, "": False}


@dataclass(frozen=True, slots=True)
class Page:
    """Which page of a list is asked for."""

    size: int
    after: str
    order: Order.ValueType


def page_of(request: web.Request) -> Page:
    """The page that the query asks for. Raises InvalidRequest with `param`."""
    check_include(request)
    query = request.query
    return Page(_limit(query.get("limit", "20")), _cursor(query.get("after", "")), _order(query.get("order", "desc")))


def check_include(request: web.Request) -> None:
    """Refuses what nobody can include. What is stored is shown whole, so that there is nothing else to do."""
    # The official Python SDK writes lists with brackets.
    for value in (*request.query.getall("include[]", ()), *request.query.getall("include", ())):
        if value not in get_args(Includable):
            raise InvalidRequest(f"'{printable(value)}' cannot be included.", param="include")


def flag(request: web.Request, name: str) -> bool:
    """A parameter that is true or false. Raises InvalidRequest."""
    text = request.query.get(name, "")
    if text not in _FLAGS:
        raise InvalidRequest(f"{name} must be true or false.", param=name)
    return _FLAGS[text]


def sequence_number(request: web.Request, name: str, default: int) -> int:
    """A parameter that is the number of an event. Raises InvalidRequest."""
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= _MAX_NUMBER):
        raise InvalidRequest(f"{name} must be the sequence number of an event.", param=name)
    return int(text)


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 4 and 1 <= int(text) <= 100):
        raise InvalidRequest("limit must be an integer from 1 to 100.", param="limit")
    return int(text)


def _cursor(text: str) -> str:
    if len(text) > _MAX_CURSOR_CHARS or not text.isprintable():
        raise InvalidRequest("after must be the id of an item of the list.", param="after")
    return text


def _order(text: str) -> Order.ValueType:
    if text not in _ORDERS:
        raise InvalidRequest("order must be 'asc' or 'desc'.", param="order")
    return _ORDERS[text]
