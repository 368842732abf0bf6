"""The bodies of requests about conversations, in checked form. What an item means is the orchestrator's business."""

from dataclasses import dataclass

import msgspec
from msgspec import UNSET, Raw, UnsetType

from http_edge.errors import InvalidRequest
from http_edge.parameters import Metadata
from http_edge.requests import Fields, convert, items_of, read_fields

MAX_ITEMS = 20


class _New(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    items: list[Raw] | None = None
    metadata: Metadata | None = None


class _Update(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    metadata: Metadata | UnsetType | None = UNSET


class _Addition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    items: list[Raw] | None


@dataclass(frozen=True, slots=True)
class NewConversation:
    """A conversation to create: its metadata as JSON, and its first items."""

    metadata: bytes
    items: list[bytes]


def read_new(body: bytes) -> NewConversation:
    """A body of POST /v1/conversations; an empty one asks for an empty conversation. Raises InvalidRequest with `param`."""
    fields = read_fields(body or b"{}")
    return NewConversation(msgspec.json.encode(convert(fields, _New).metadata or {}), _items(fields))


def read_update(body: bytes) -> bytes:
    """The new metadata as JSON; it must be there, and null is none. Raises InvalidRequest with `param`."""
    given = convert(read_fields(body), _Update).metadata
    if given is UNSET:
        raise InvalidRequest("Missing required parameter: 'metadata'.", param="metadata")
    return msgspec.json.encode(given or {})


def read_addition(body: bytes) -> list[bytes]:
    """The items to add. Raises InvalidRequest with `param`."""
    fields = read_fields(body)
    convert(fields, _Addition)
    items = _items(fields)
    if not items:
        raise InvalidRequest("There must be at least one item.", param="items")
    return items


def _items(fields: Fields) -> list[bytes]:
    items = items_of(fields.get("items"), "items")
    if len(items) > MAX_ITEMS:
        raise InvalidRequest(f"There may be at most {MAX_ITEMS} items.", param="items")
    return items
