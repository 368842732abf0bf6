"""The Responses wire as llama.cpp writes it, which differs from everyone else's in ways that a gateway must bear.

No numbers and no indexes; items overlap, because all that closes an item comes at the very end; reasoning has no parts and no done event of
its text; a function call has no id and no done event of its arguments; a cut answer is `completed`; nothing of the request is echoed.
"""

from collections.abc import Iterator

from tests.fakes.answers import CREATED_AT, Answer, Call, Item, Json, Message, Mint, Other, Reasoning, usage_of


def llama_events(answer: Answer, request: Json, mint: Mint) -> list[Json]:
    """The whole stream of one answer."""
    response_id = mint("resp")
    opening = {"id": response_id, "object": "response", "status": "in_progress"}
    output = [_body(item, mint) for item in answer.items]
    events: list[Json] = [{"type": "response.created", "response": opening}, {"type": "response.in_progress", "response": opening}]
    for item, body in zip(answer.items, output, strict=True):
        events.extend(_opened(item, body))
    for item, body in zip(answer.items, output, strict=True):
        events.extend(_closed(item, body))
    if answer.status == "failed":
        return [*events, _error(answer)]
    return [*events, {"type": "response.completed", "response": _response(answer, request, response_id, output)}]


def llama_object(answer: Answer, request: Json, mint: Mint) -> Json:
    """The same answer as one JSON object."""
    response = _response(answer, request, mint("resp"), [_body(item, mint) for item in answer.items])
    return {"completed_at": CREATED_AT} | response


def _response(answer: Answer, request: Json, response_id: str, output: list[Json]) -> Json:
    response: Json = {
        "id": response_id,
        "object": "response",
        "created_at": CREATED_AT,
        "status": "completed",
        "model": request.get("model", "m"),
        "output": output,
    }
    if not answer.no_usage:
        usage = usage_of(answer, request).as_json()
        del usage["output_tokens_details"]
        response["usage"] = usage
    return response


def _error(answer: Answer) -> Json:
    _, message = answer.error or ("", "The engine failed.")
    return {"type": "error", "error": {"code": 500, "message": message, "type": "server_error"}}


def _body(item: Item, mint: Mint) -> Json:
    match item:
        case Message(parts):
            text = "".join(part.text for part in parts)
            content = [{"type": "output_text", "annotations": [], "logprobs": [], "text": text}]
            return {"type": "message", "status": "completed", "id": mint("msg"), "content": content, "role": "assistant"}
        case Call(name):
            call_id = item.call_id or "fc_" + mint("call")
            return {"type": "function_call", "status": "completed", "arguments": item.arguments, "call_id": call_id, "name": name}
        case Reasoning(texts):
            whole = [{"text": "".join(piece for text in texts for piece in text), "type": "reasoning_text"}]
            return {"id": mint("rs"), "summary": [], "type": "reasoning", "content": whole, "encrypted_content": ""}
        case Other(given):
            return {"id": mint("it"), **given}


def _opened(item: Item, body: Json) -> Iterator[Json]:
    empty = {"content": [], "arguments": "", "status": "in_progress"}
    added = {key: empty.get(key, value) for key, value in body.items()}
    yield {"type": "response.output_item.added", "item": added if not isinstance(item, Other) else body}
    match item:
        case Message(parts):
            yield {"type": "response.content_part.added", "item_id": body["id"], "part": {"type": "output_text", "text": ""}}
            yield from _deltas("response.output_text.delta", body["id"], [piece for part in parts for piece in part.pieces])
        case Call(_, pieces):
            yield from _deltas("response.function_call_arguments.delta", body["call_id"], pieces)
        case Reasoning(texts):
            yield from _deltas("response.reasoning_text.delta", body["id"], [piece for text in texts for piece in text])


def _deltas(kind: str, item_id: object, pieces: list[str] | tuple[str, ...]) -> Iterator[Json]:
    yield from ({"type": kind, "item_id": item_id, "delta": piece} for piece in pieces)


def _closed(item: Item, body: Json) -> Iterator[Json]:
    if isinstance(item, Message):
        content = body["content"]
        assert isinstance(content, list)
        yield {"type": "response.output_text.done", "item_id": body["id"], "text": content[0]["text"]}
        yield {"type": "response.content_part.done", "item_id": body["id"], "part": content[0]}
    yield {"type": "response.output_item.done", "item": body}
