"""Approvals: what a client's answers to approval requests mean for the turn. Pure.

An approved call is run by the turn, with exactly the arguments that were approved; a denied one is rendered as a call whose output says so.
A request that nobody has answered renders nothing.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec

from orchestrator_svc.context.carried import Pending
from orchestrator_svc.context.rendering import call_and_output
from orchestrator_svc.errors import InvalidRequest
from orchestrator_svc.items import Item, make_called
from orchestrator_svc.tools.names import flat_name
from svckit.json_text import JsonObject


@dataclass(frozen=True, slots=True)
class Approved:
    """A call that a client lets happen, once."""

    request_id: str
    pending: Pending


class _Answer(msgspec.Struct):
    approval_request_id: str
    approve: bool
    reason: str | None = None


class _Called(msgspec.Struct):
    approval_request_id: str | None = None


def resolve(input: tuple[Item, ...], pending: Mapping[str, Pending]) -> tuple[tuple[Item, ...], tuple[Approved, ...]]:
    """The input with its denials rendered, and what it approves. Raises InvalidRequest for an answer to nothing that is pending."""
    open_requests = dict(pending) | _requests_in(input)
    settled = _settled_in(input)
    items: list[Item] = []
    approved: list[Approved] = []
    for position, item in enumerate(input):
        if item.type == "mcp_approval_response":
            answer = msgspec.json.decode(item.body, type=_Answer)
            if answer.approval_request_id in settled:
                items.append(item)
                continue
            asked = open_requests.pop(answer.approval_request_id, None)
            if asked is None:
                path = f"input[{position}].approval_request_id"
                raise InvalidRequest("There is no such approval request, or it has been answered.", param=path)
            if answer.approve:
                approved.append(Approved(answer.approval_request_id, asked))
            else:
                item = _denied(item, answer, asked)
        items.append(item)
    return tuple(items), tuple(approved)


def call_id_of(request_id: str) -> str:
    """The call id of an approved or denied call, of at most 64 characters."""
    call_id = f"call_{request_id.partition('_')[2] or request_id}"
    return call_id if len(call_id) <= 64 else f"call_{hashlib.sha256(request_id.encode()).hexdigest()[:40]}"


def _requests_in(input: Iterable[Item]) -> dict[str, Pending]:
    """Clients that chain nothing send the request itself back, before the answer."""
    return {item.id: msgspec.json.decode(item.body, type=Pending) for item in input if item.type == "mcp_approval_request"}


def _settled_in(input: Iterable[Item]) -> set[str]:
    """Requests whose call has been run, and is sent back with the rest of the past."""
    calls = (msgspec.json.decode(item.body, type=_Called) for item in input if item.type == "mcp_call")
    return {call.approval_request_id for call in calls if call.approval_request_id}


def _denied(item: Item, answer: _Answer, asked: Pending) -> Item:
    told = "The user did not approve this call, and it was not run."
    if answer.reason:
        told += f" Reason: {answer.reason}"
    flat = flat_name("mcp", asked.server_label, asked.name)
    pair = call_and_output(call_id_of(answer.approval_request_id), flat, asked.arguments, told)
    body = msgspec.json.decode(item.body, type=JsonObject)
    return replace(make_called(item.id, body, pair), tokens=item.tokens)
