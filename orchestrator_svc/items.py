"""Items: one thing that was said, called or returned, as it is stored, shown and rendered.

Every item has two forms. Its `body` is the item as the API shows it, without its id; an empty one is not shown. Its `prompt` is the neutral
prompt form; None means that the body is the prompt, empty means that the model sees nothing. An item that is `left_out` is listed, but
nothing continues from it. This file is pure: ids come in as values.
What clients write is read in `input_items`.
"""

from dataclasses import dataclass, replace

import msgspec

from orchestrator_svc.context.rendering import NOTHING, Rendering, rendered
from svckit.json_text import JsonObject as JsonObject
from svckit.json_text import encode as encode

# The type of an item that no client sees: a call that could not be made and what the model was told.
MODEL_ONLY = "model_only"

PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "cto",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    "additional_tools": "at",
    "web_search_call": "ws",
    "mcp_list_tools": "mcpl",
    "mcp_call": "mcp",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
    "item_reference": "ref",
    "compaction": "cmp",
    "compaction_trigger": "cmpt",
    "configuration_update": "cfg",
    MODEL_ONLY: "call",
}
# What the gateway makes itself; sent back by a client, such an item is looked up by its id and regains what was stored.
HOSTED = frozenset({"web_search_call", "mcp_list_tools", "mcp_call", "mcp_approval_request"})
_CALLS = frozenset({"function_call", "custom_tool_call", "tool_search_call"})
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output", "tool_search_output"})

_TOKENS_PER_ITEM = 12
_TOKENS_PER_PART = 7
_TOKENS_PER_IMAGE = 1024
_BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Item:
    """One item, ready to be stored, shown and rendered."""

    id: str
    type: str
    body: bytes
    prompt: bytes | None
    tokens: int
    origin: str = ""
    opens: str | None = None
    closes: str | None = None
    left_out: bool = False

    @property
    def rendered(self) -> bytes:
        """The neutral prompt form: zero or more JSON array elements."""
        return self.body if self.prompt is None else self.prompt

    @property
    def shown(self) -> bytes:
        """The item as the API shows it, its id included."""
        return b'{"id":' + encode(self.id) + b"," + self.body[1:]


def make(id: str, body: JsonObject, provider: str = "") -> Item:
    """The item whose body is `body`; `provider` made it, or nobody that we know (a client). Opaque content goes back to its maker only."""
    rendering = rendered(body)
    if rendering.opaque and not provider:
        rendering = NOTHING
    return _item(id, body, rendering, origin=provider if rendering.opaque else "")


def make_called(id: str, body: JsonObject, pair: Rendering) -> Item:
    """The item of a call that the gateway ran (or would not run): clients see `body`, the model sees the pair."""
    return _item(id, body, pair)


def make_standing_for(id: str, body: JsonObject, window: bytes) -> Item:
    """The item of a compaction: the model sees the window that stands for all that was before."""
    elements = msgspec.json.decode(b"[" + window + b"]", type=list[JsonObject])
    return Item(id, str(body["type"]), encode(body), window, sum(map(tokens_of, elements)))


def make_model_only(id: str, pair: Rendering) -> Item:
    """An item that only the model sees; its body is empty."""
    prompt = _prompt(pair)
    return Item(id, MODEL_ONLY, b"", prompt, sum(map(tokens_of, pair.elements)))


def out_of_context(item: Item) -> Item:
    """The item as one that is shown and that nothing continues from."""
    return replace(item, prompt=b"", opens=None, closes=None, left_out=True)


def restored(id: str, type: str, body: bytes, prompt: bytes | None, tokens: int, origin: str) -> Item:
    """A stored item, as it was made."""
    call_id = msgspec.json.decode(body, type=_Call).call_id if type in _CALLS or type in _OUTPUTS else None
    opens = call_id if type in _CALLS and prompt != b"" else None
    return Item(id, type, body, prompt, tokens, origin, opens=opens, closes=call_id if type in _OUTPUTS else None)


class _Call(msgspec.Struct):
    call_id: str


def tokens_of(element: JsonObject) -> int:
    """The size of what is seen, by estimate: UTF-8 bytes of text / 4 rounded up, 12 an item, 7 a part, 1,024 an image."""
    parts = [part for key in ("content", "summary", "output") for part in _list(element.get(key))]
    images = sum(part.get("type") == "input_image" for part in parts)
    texts = [element.get("arguments"), element.get("name"), element.get("input"), element.get("output")] + [
        part.get("text", part.get("refusal")) for part in parts
    ]
    size = sum(len(text.encode()) for text in texts if isinstance(text, str))
    return -(-size // _BYTES_PER_TOKEN) + _TOKENS_PER_ITEM + _TOKENS_PER_PART * len(parts) + _TOKENS_PER_IMAGE * images


def _item(id: str, body: JsonObject, rendering: Rendering, origin: str = "") -> Item:
    kind, encoded, prompt = str(body["type"]), encode(body), _prompt(rendering)
    return Item(
        id,
        kind,
        encoded,
        None if prompt == encoded else prompt,
        sum(map(tokens_of, rendering.elements)),
        origin=origin,
        opens=str(body["call_id"]) if kind in _CALLS and prompt else None,
        closes=str(body["call_id"]) if kind in _OUTPUTS else None,
    )


def _prompt(rendering: Rendering) -> bytes:
    return b",".join(map(encode, rendering.elements))


def _list(value: object) -> list[JsonObject]:
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []
