"""The openai package for Python. `python openai_python.py SCENARIO`; the address and the key are in the environment."""

import asyncio
import sys
import time

from openai import AsyncOpenAI, BadRequestError, OpenAI
from pydantic import BaseModel

client = OpenAI(max_retries=0)
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
    "strict": True,
}


class City(BaseModel):
    name: str
    people: int


def create_and_continue():
    first = client.responses.create(model="m", input="apple")
    second = client.responses.create(model="m", input="pear", previous_response_id=first.id)
    third = client.responses.create(model="m", input="What did I say?", previous_response_id=second.id)
    assert (first.output_text, third.output_text) == ("You said: apple", "apple | pear"), third.output_text
    assert client.responses.retrieve(third.id).output_text == third.output_text
    assert [item.role for item in client.responses.input_items.list(third.id, limit=2)] == ["user", "assistant"] * 2 + ["user"]
    client.responses.delete(first.id)


def stream_helper():
    with client.responses.stream(model="m", input="apple") as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == "You said: apple"


def function_tool():
    asked = client.responses.create(model="m", input="hello", tools=[WEATHER], tool_choice={"type": "function", "name": "get_weather"})
    call = asked.output[0]
    assert (call.type, call.name, call.arguments) == ("function_call", "get_weather", '{"city": "sample"}'), call
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "foggy"}
    answered = client.responses.create(model="m", input=[output], previous_response_id=asked.id, tools=[WEATHER])
    assert answered.output_text == "You said: hello"


def structured_output():
    parsed = client.responses.parse(model="m", input="a city", text_format=City)
    assert parsed.output_parsed == City(name="sample", people=1), parsed


def conversation():
    conversation = client.conversations.create(items=[{"type": "message", "role": "user", "content": "apple"}])
    client.responses.create(model="m", input="pear", conversation=conversation.id)
    last = client.responses.create(model="m", input="What did I say?", conversation=conversation.id)
    assert last.output_text == "apple | pear", last.output_text
    assert len(list(client.conversations.items.list(conversation.id, limit=2))) == 5
    client.conversations.delete(conversation.id)


def background():
    queued = client.responses.create(model="m", input="apple", background=True)
    assert queued.status in ("queued", "in_progress"), queued.status
    while (response := client.responses.retrieve(queued.id)).status in ("queued", "in_progress"):
        time.sleep(0.1)
    assert (response.status, response.output_text) == ("completed", "You said: apple")


def background_stream():
    stream = client.responses.create(model="m", input="apple", background=True, stream=True)
    first = next(iter(stream))
    stream.close()
    kinds = [event.type for event in client.responses.retrieve(first.response.id, stream=True, starting_after=first.sequence_number)]
    assert kinds[-1] == "response.completed", kinds


def counting_and_compacting():
    assert client.responses.input_tokens.count(model="m", input="apple").input_tokens > 0
    compacted = client.responses.compact(model="m", input=[{"role": "user", "content": "apple"}, {"role": "user", "content": "pear"}])
    sent_back = [item.model_dump(exclude_none=True) for item in compacted.output]
    assert sent_back[-1]["type"] == "compaction", sent_back
    client.responses.create(model="m", input=[*sent_back, {"role": "user", "content": "What did I say?"}])


def unstored_reasoning():
    settings = {"model": "m", "store": False, "include": ["reasoning.encrypted_content"]}
    history = [{"role": "user", "content": "think"}]
    with client.responses.stream(input=history, **settings) as stream:
        output = [item.model_dump(exclude_none=True) for item in stream.get_final_response().output]
    output = [{**item, "content": None} if item["type"] == "reasoning" else item for item in output]
    history += [*output, {"role": "user", "content": "What did you think?"}]
    assert client.responses.create(input=history, **settings).output_text == "I think so."


def unknown_response():
    found = None
    try:
        client.responses.create(model="m", input="x", previous_response_id=f"resp_{1:040x}")
    except BadRequestError as error:
        found = (error.code, error.param)
    assert found == ("previous_response_not_found", "previous_response_id"), found


def websocket():
    async def talk():
        async with AsyncOpenAI(max_retries=0) as client, client.responses.connect() as connection:
            parent = {}
            for text in ("apple", "pear", "What did I say?"):
                await connection.response.create(model="m", input=text, store=False, **parent)
                async for event in connection:
                    assert event.type != "error", event
                    if event.type == "response.completed":
                        parent = {"previous_response_id": event.response.id}
                        break
            return event.response.output_text

    assert asyncio.run(talk()) == "apple | pear"


globals()[sys.argv[1]]()
