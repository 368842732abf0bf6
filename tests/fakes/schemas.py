"""The published shapes of events and responses: the Open Responses OpenAPI file, and the types of the official Python SDK.

Both are asked about one object at a time; what holds between events is `streams.py`'s business. Item and tool types that the file does not
know (it knows five items and one tool) are hidden from it and judged by the SDK types alone.
"""

import copy
import functools
import json
import typing
from pathlib import Path

import jsonschema_rs

from tests.fakes.answers import Json

OPENAPI = Path(__file__).parent.parent / "data" / "openresponses-openapi.json"
LISTED_ITEMS = frozenset({"message", "function_call", "function_call_output", "reasoning", "compaction"})
NEVER_NULL = frozenset({"phase", "logprobs", "obfuscation", "created_by", "namespace", "encrypted_content", "content", "annotations"})
"""Optional keys whose null breaks a published client: they are left out instead."""
UNLISTED_NESTED = frozenset({"error"})
"""Events that the SDK types flat while the wire has them nested."""


class ShapeFault(AssertionError):
    """An object that is not shaped as published."""


def check_event_shape(event: Json) -> None:
    """One event against the OpenAPI file, if it lists the type, and against the SDK's class of that type."""
    kind = event.get("type")
    listed, known = _event_validators(), _sdk_events()
    if kind not in listed and kind not in known and kind not in ("response.reasoning.delta", "response.reasoning.done"):
        raise ShapeFault(f"unknown event type {kind!r}")
    if kind in listed:
        _ask(listed[str(kind)], _presentable_event(event), f"event {kind}")
    if kind in known and kind not in UNLISTED_NESTED:
        _ask_sdk(known[str(kind)], _typed_event(event), f"event {kind}")
    _refuse_nulls({key: value for key, value in event.items() if key != "response"}, str(kind))
    if isinstance(event.get("response"), dict):
        _refuse_nulls(event["response"].get("output"), "response.output")  # type: ignore[attr-defined]


def check_response_shape(response: Json) -> None:
    """One response object against ResponseResource of the file and Response of the SDK."""
    _ask(_validator("ResponseResource"), _presentable(response), "response")
    _ask_sdk(_sdk_response(), _typed(response), "response")
    _refuse_nulls(response.get("output"), "response.output")


def check_item_shape(item: Json) -> None:
    """One item as a list of input items shows it, against the file if it lists the type."""
    if item.get("type") in LISTED_ITEMS:
        _ask(_validator("ItemField"), item, "item")
    _refuse_nulls(item, "item")


@functools.cache
def _components() -> Json:
    document = json.loads(OPENAPI.read_text())
    return {"components": document["components"]}


@functools.cache
def _validator(name: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator({"$ref": f"#/components/schemas/{name}", **_components()})


@functools.cache
def _event_validators() -> dict[str, jsonschema_rs.Draft202012Validator]:
    """The validators of the 24 events that the file lists, by event type."""
    schemas: typing.Any = _components()["components"]
    names = [name for name in schemas["schemas"] if name.endswith("StreamingEvent")]
    return {schemas["schemas"][name]["properties"]["type"]["enum"][0]: _validator(name) for name in names}


@functools.cache
def _sdk_events() -> dict[str, typing.Any]:
    """The SDK's event classes by type; imported late, because the package takes a second to load."""
    from openai.types.responses import ResponseStreamEvent

    classes = typing.get_args(typing.get_args(ResponseStreamEvent)[0])
    return {typing.get_args(cls.model_fields["type"].annotation)[0]: cls for cls in classes}


@functools.cache
def _sdk_response() -> typing.Any:
    from openai.types.responses import Response

    return Response


@functools.cache
def _sdk_tools() -> frozenset[str]:
    from openai.types.responses import Tool

    classes = typing.get_args(typing.get_args(Tool)[0])
    return frozenset(str(kind) for cls in classes for kind in typing.get_args(cls.model_fields["type"].annotation))


def _ask(validator: jsonschema_rs.Draft202012Validator, value: Json, what: str) -> None:
    for error in validator.iter_errors(value):
        raise ShapeFault(f"{what} is not as the OpenAPI file says {'; '.join(_nearest(error))}")


def _nearest(error: jsonschema_rs.ValidationError) -> list[str]:
    """What is wrong at the bottom: of a choice between shapes, what the one with the right `type` says."""
    branches = getattr(error.kind, "context", None) or []
    if not branches:
        where = ".".join(str(step) for step in error.instance_path)
        return [f"at {where or 'the top'}: {error.message[:300]}"]
    fitting = [branch for branch in branches if not any(_is_other_shape(fault) for fault in branch)]
    return [reason for branch in fitting or branches for fault in branch for reason in _nearest(fault)]


def _is_other_shape(fault: jsonschema_rs.ValidationError) -> bool:
    return list(fault.instance_path)[-1:] == ["type"] or 'is not of type "null"' in fault.message


def _ask_sdk(model: typing.Any, value: Json, what: str) -> None:
    try:
        model.model_validate(value)
    except ValueError as exc:
        raise ShapeFault(f"{what} is not as the SDK types say: {str(exc)[:1200]}") from exc


def _typed_event(event: Json) -> Json:
    if isinstance(event.get("response"), dict):
        return event | {"response": _typed(typing.cast(Json, event["response"]))}
    item = event.get("item")
    if isinstance(item, dict) and item.get("type") == "web_search_call" and event["type"] == "response.output_item.added":
        # recorded streams announce a search without its action, which the SDK's type wants
        return event | {"item": item | {"action": {"type": "search", "query": ""}}}
    return event


def _typed(response: Json) -> Json:
    """The response without codes, reasons, choices and tools that the SDK does not list: it lists those of one vendor, and reads any."""
    typed = dict(response)
    error, details = response.get("error"), response.get("incomplete_details")
    if isinstance(error, dict) and isinstance(error.get("code"), str):
        typed["error"] = error | {"code": "server_error"}
    if isinstance(details, dict) and details.get("reason") == "max_rounds":
        typed["incomplete_details"] = {"reason": "max_output_tokens"}
    if response.get("tool_choice") == {"type": "web_search"}:
        typed["tool_choice"] = {"type": "web_search_preview"}
    if isinstance(tools := response.get("tools"), list):
        typed["tools"] = [tool for tool in tools if isinstance(tool, dict) and tool.get("type") in _sdk_tools()]
    return typed


def _refuse_nulls(value: object, where: str) -> None:
    if isinstance(value, list):
        for index, entry in enumerate(value):
            _refuse_nulls(entry, f"{where}[{index}]")
    elif isinstance(value, dict):
        for key, entry in value.items():
            if entry is None and key in NEVER_NULL:
                raise ShapeFault(f"{where}.{key} is null; it must be left out")
            _refuse_nulls(entry, f"{where}.{key}")


def _presentable_event(event: Json) -> Json:
    if isinstance(event.get("response"), dict):
        return event | {"response": _presentable(typing.cast(Json, event["response"]))}
    item = event.get("item")
    if isinstance(item, dict) and item.get("type") not in LISTED_ITEMS and event["type"] != "error":
        return event | {"item": None}
    return event


def _presentable(response: Json) -> Json:
    """The response without what the file cannot express."""
    shown: typing.Any = copy.deepcopy(response)
    if isinstance(shown.get("output"), list):
        shown["output"] = [item for item in shown["output"] if not isinstance(item, dict) or item.get("type") in LISTED_ITEMS]
    if isinstance(shown.get("tools"), list):
        shown["tools"] = [tool for tool in shown["tools"] if not isinstance(tool, dict) or tool.get("type") == "function"]
    if isinstance(shown.get("tool_choice"), dict) and shown["tool_choice"].get("type") not in ("function", "allowed_tools"):
        shown["tool_choice"] = "auto"
    form = shown["text"].get("format") if isinstance(shown.get("text"), dict) else None
    if isinstance(form, dict) and form.get("type") == "json_schema":
        form["schema"] = None
    return typing.cast(Json, shown)
