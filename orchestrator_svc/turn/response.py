"""The response object as the API shows it: its body (all but id and output), and the whole with both put in. Pure."""

from collections.abc import Iterable

from orchestrator_svc.items import Item, JsonObject, encode
from orchestrator_svc.turn.events import Usage
from orchestrator_svc.turn.state import Ending, Turn


def body_of(turn: Turn, ending: Ending) -> bytes:
    """The response without its id and output, as the bytes of a JSON object; all keys that the wire requires are there."""
    body: JsonObject = {
        "object": "response",
        "created_at": turn.created_at,
        "completed_at": ending.completed_at,
        "status": ending.status,
        "background": turn.request.background,
        "error": None if ending.code is None else {"code": ending.code, "message": ending.message},
        "incomplete_details": None if ending.cut is None else {"reason": ending.cut},
        "model": turn.request.model,
        "previous_response_id": turn.request.previous_response_id,
        "store": turn.request.store,
        "usage": None if turn.usage is None or ending.status in _GOING_ON else _shown(turn.usage),
    }
    if turn.parent.conversation_id:
        body["conversation"] = {"id": turn.parent.conversation_id}
    return encode(body | turn.request.echo)


_GOING_ON = ("queued", "in_progress")


def response_of(response_id: str, body: bytes, output: Iterable[Item]) -> bytes:
    """The whole response as JSON."""
    return b'{"id":%b,%b,"output":[%b]}' % (encode(response_id), body[1:-1], b",".join(item.shown for item in output if item.body))


def _shown(usage: Usage) -> JsonObject:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
