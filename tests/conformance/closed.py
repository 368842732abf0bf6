"""The OpenAPI file taken at its word: nothing hidden, no type beyond those it lists.

`tests.fakes.schemas` shows the file only what it knows, since a gateway does more than Open Responses describes. Here nothing of that is
asked for, so that every event and every object must be one of the file's own.
"""

import functools
import json

import jsonschema_rs

from tests.fakes.answers import Json
from tests.fakes.schemas import OPENAPI


def check(schema: str, value: Json) -> Json:
    """The value, which must be as the named schema says."""
    faults = [f"{'.'.join(map(str, error.instance_path))}: {error.message}"[:300] for error in _validator(schema).iter_errors(value)]
    assert not faults, f"{value.get('type', value.get('object'))} is no {schema}: {faults}"
    return value


def check_event(event: Json) -> None:
    """The event, which must be one of the 24 that the file lists."""
    schemas = events()
    assert event["type"] in schemas, f"{event['type']!r} is not listed"
    check(schemas[str(event["type"])], event)


@functools.cache
def events() -> dict[str, str]:
    """The names of the schemas of events by event type."""
    names = [name for name in _schemas() if name.endswith("StreamingEvent")]
    return {_schemas()[name]["properties"]["type"]["enum"][0]: name for name in names}


@functools.cache
def _validator(name: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": {"schemas": _schemas()}})


@functools.cache
def _schemas() -> dict[str, dict[str, dict[str, dict[str, list[str]]]]]:
    schemas: dict[str, dict[str, dict[str, dict[str, list[str]]]]] = json.loads(OPENAPI.read_text())["components"]["schemas"]
    return schemas
