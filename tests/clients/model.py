"""The scripted model of the clients' engine: it calls the tool that it is forced to or that the user speaks of, and fills schemas.

Asked "What did I say?", it repeats all that users have said to it, so that a client can see what was remembered. Asked to think, it thinks
before it answers; asked "What did you think?", it tells.
"""

import json
from dataclasses import replace

from tests.fakes.answers import Call, Json, pieces
from tests.fakes.echo import echo, sample
from tests.fakes.engine import Received
from tests.fakes.scripts import Script, reasoning, text

SAID, THOUGHT = "What did I say?", "What did you think?"


def obedient(received: Received) -> Script:
    """The answer to any request."""
    said = user_texts(received) or [""]
    if said[-1] == SAID:
        return text(" | ".join(said[:-1]))
    if said[-1] == THOUGHT:
        return text(" | ".join(_text(item.get("content")) for item in received.input if item.get("type") == "reasoning"))
    script = _with_arguments(echo(received.json), received.json)
    return reasoning("I think so.") + script if "think" in said[-1] else script


def user_texts(received: Received) -> list[str]:
    """What users have said, message by message."""
    return [_text(item.get("content")) for item in received.input if item.get("role") == "user"]


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return " ".join(str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part)


def _with_arguments(script: Script, request: Json) -> Script:
    """A call without arguments gets those that its tool asks for."""
    answer = script.answer
    if answer is None or not isinstance(answer.items[0], Call):
        return script
    call = answer.items[0]
    tools = request.get("tools")
    declared = [tool for tool in tools if isinstance(tool, dict) and tool.get("name") == call.name] if isinstance(tools, list) else []
    schema = declared[0].get("parameters") if declared else None
    arguments = json.dumps(sample(schema)) if isinstance(schema, dict) else "{}"
    return replace(script, answer=replace(answer, items=(replace(call, pieces=pieces(arguments)),)))
