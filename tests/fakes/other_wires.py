"""The fake engine's answers on every endpoint: which wire a path speaks, and the bodies of Chat Completions, Messages and the rest.

The Responses wire itself stands in `answers.py`. Bodies here are plausible, not complete: the gateway carries them unread.
"""

import json
from collections.abc import Iterator, Sequence

from tests.fakes.answers import CREATED_AT, Answer, Call, Dialect, Json, Message, Mint, Reasoning, response_events, response_object
from tests.fakes.llama_cpp import llama_events, llama_object
from tests.fakes.scripts import Asked, Edit, Reply, engine_error


def render(answer: Answer, asked: Asked, dialect: Dialect, mint: Mint, edit: Edit | None) -> Reply:
    """The answer as this endpoint would give it, streamed if the request says so."""
    request, streaming = asked.json, asked.json.get("stream") is True
    match asked.path:
        case "/v1/responses" if streaming and dialect.overlapping:
            return _named_stream(llama_events(answer, request, mint), edit, dialect.done_marker)
        case "/v1/responses" if streaming:
            return _named_stream(response_events(answer, request, dialect, mint), edit, dialect.done_marker)
        case "/v1/responses" if dialect.overlapping:
            return _object(llama_object(answer, request, mint), edit)
        case "/v1/responses":
            return _object(response_object(answer, request, dialect, mint), edit)
        case "/v1/chat/completions" if streaming:
            return _data_stream(_chat_chunks(answer, request, mint), edit)
        case "/v1/chat/completions":
            return _object(_chat(answer, request, mint), edit)
        case "/v1/completions" if streaming:
            return _data_stream([_completion(piece, request, mint) for piece in _pieces(answer)], edit)
        case "/v1/completions":
            return _object(_completion(_text(answer), request, mint), edit)
        case "/v1/messages" if streaming:
            return _named_stream(list(_message_events(answer, request, mint)), edit, done_marker=False)
        case "/v1/messages":
            return _object(_message(answer, request, mint), edit)
        case "/v1/messages/count_tokens":
            return _object({"input_tokens": max(1, len(repr(request.get("messages"))) // 4)}, edit)
        case "/v1/embeddings":
            return _object(_embeddings(request), edit)
    return Reply(404, {"Content-Type": "application/json"}, (json.dumps(engine_error(404, "Not Found")).encode(),), chunked=False)


def models() -> Json:
    """The list of models that GET /v1/models shows."""
    return {"object": "list", "data": [{"id": "m", "object": "model", "created": CREATED_AT, "owned_by": "fake"}]}


def sse(event: Json | bytes) -> bytes:
    """One event of a stream as bytes; bytes stay as they are."""
    if isinstance(event, bytes):
        return event
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def _edited(events: Sequence[Json], edit: Edit | None) -> Iterator[Json | bytes]:
    for event in events:
        changed = event if edit is None else edit(event)
        if changed is None:
            continue
        if isinstance(changed, dict | bytes):
            yield changed
        else:
            yield from changed


def _named_stream(events: Sequence[Json], edit: Edit | None, done_marker: bool) -> Reply:
    written = [sse(event) for event in _edited(events, edit)]
    if done_marker:
        written.append(b"data: [DONE]\n\n")
    return Reply(200, {"Content-Type": "text/event-stream"}, tuple(written), chunked=True)


def _data_stream(events: Sequence[Json], edit: Edit | None) -> Reply:
    written = [event if isinstance(event, bytes) else f"data: {json.dumps(event)}\n\n".encode() for event in _edited(events, edit)]
    return Reply(200, {"Content-Type": "text/event-stream"}, (*written, b"data: [DONE]\n\n"), chunked=True)


def _object(body: Json, edit: Edit | None) -> Reply:
    parts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in _edited([body], edit)]
    return Reply(200, {"Content-Type": "application/json"}, tuple(parts), chunked=False)


def _pieces(answer: Answer) -> list[str]:
    return [piece for item in answer.items if isinstance(item, Message) for part in item.parts for piece in part.pieces]


def _text(answer: Answer) -> str:
    return "".join(_pieces(answer))


def _thought(answer: Answer) -> str:
    return "".join(piece for item in answer.items if isinstance(item, Reasoning) for text in item.texts for piece in text)


def _calls(answer: Answer, mint: Mint) -> list[Json]:
    calls = [item for item in answer.items if isinstance(item, Call)]
    return [
        {"id": call.call_id or mint("call"), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
    ]


def _finish(answer: Answer) -> str:
    if answer.status == "incomplete":
        return "length"
    return "tool_calls" if any(isinstance(item, Call) for item in answer.items) else "stop"


def _chat_usage(answer: Answer, request: Json) -> Json:
    prompt = max(1, len(repr(request.get("messages"))) // 4)
    done = answer.piece_count()
    return {"prompt_tokens": prompt, "completion_tokens": done, "total_tokens": prompt + done}


def _chat(answer: Answer, request: Json, mint: Mint) -> Json:
    message: Json = {"role": "assistant", "content": _text(answer) or None}
    if thought := _thought(answer):
        message["reasoning_content"] = thought
    if calls := _calls(answer, mint):
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": _finish(answer)}
    return _chat_head(request, mint) | {"object": "chat.completion", "choices": [choice], "usage": _chat_usage(answer, request)}


def _chat_head(request: Json, mint: Mint) -> Json:
    return {"id": mint("chatcmpl"), "created": CREATED_AT, "model": request.get("model", "m")}


def _chat_chunks(answer: Answer, request: Json, mint: Mint) -> list[Json]:
    head = _chat_head(request, mint) | {"object": "chat.completion.chunk"}
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    if thought := _thought(answer):
        deltas.append({"reasoning_content": thought})
    deltas += [{"content": piece} for piece in _pieces(answer)]
    deltas += [{"tool_calls": [{"index": index, **call}]} for index, call in enumerate(_calls(answer, mint))]
    chunks: list[Json] = [head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": _finish(answer)}]})
    options = request.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        chunks.append(head | {"choices": [], "usage": _chat_usage(answer, request)})
    return chunks


def _completion(text: str, request: Json, mint: Mint) -> Json:
    head = _chat_head(request, mint) | {"object": "text_completion"}
    return head | {"choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": "stop"}]}


def _message(answer: Answer, request: Json, mint: Mint) -> Json:
    blocks: list[Json] = [{"type": "text", "text": _text(answer)}] if _pieces(answer) else []
    for call in _calls(answer, mint):
        function = call["function"]
        assert isinstance(function, dict)
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": json.loads(function["arguments"])})
    usage = {"input_tokens": max(1, len(repr(request.get("messages"))) // 4), "output_tokens": answer.piece_count()}
    stop = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn"}[_finish(answer)]
    head: Json = {"id": mint("msg"), "type": "message", "role": "assistant", "model": request.get("model", "m")}
    return head | {"content": blocks, "stop_reason": stop, "stop_sequence": None, "usage": usage}


def _message_events(answer: Answer, request: Json, mint: Mint) -> Iterator[Json]:
    whole = _message(answer, request, mint)
    yield {"type": "message_start", "message": whole | {"content": [], "stop_reason": None}}
    yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    for piece in _pieces(answer):
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_delta", "delta": {"stop_reason": whole["stop_reason"], "stop_sequence": None}, "usage": whole["usage"]}
    yield {"type": "message_stop"}


def _embeddings(request: Json) -> Json:
    given = request.get("input")
    count = len(given) if isinstance(given, list) else 1
    data = [{"object": "embedding", "index": index, "embedding": [0.1, -0.2, 0.3]} for index in range(count)]
    return {"object": "list", "data": data, "model": request.get("model", "m"), "usage": {"prompt_tokens": count, "total_tokens": count}}
