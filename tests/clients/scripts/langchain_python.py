"""langchain-openai. `python langchain_python.py SCENARIO`; the address and the key are in the environment."""

import sys

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

settings = {"model": "m", "use_responses_api": True, "max_retries": 0}
model = ChatOpenAI(**settings)


class City(BaseModel):
    name: str
    people: int


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return "foggy"


def invoke():
    answer = model.invoke("apple")
    assert answer.text == "You said: apple", answer
    assert answer.usage_metadata["total_tokens"] > 0


def stream():
    assert "".join(chunk.text for chunk in model.stream("apple")) == "You said: apple"


def whole_history():
    history = [HumanMessage("apple")]
    history += [model.invoke(history), HumanMessage("What did I say?")]
    assert model.invoke(history).text == "apple"


def previous_response():
    chained = ChatOpenAI(**settings, use_previous_response_id=True)
    history = [HumanMessage("apple")]
    history += [chained.invoke(history), HumanMessage("What did I say?")]
    assert chained.invoke(history).text == "apple"


def function_tool():
    forced = model.bind_tools([get_weather], tool_choice="get_weather")
    history = [HumanMessage("hello")]
    asked = forced.invoke(history)
    assert [(call["name"], call["args"]) for call in asked.tool_calls] == [("get_weather", {"city": "sample"})], asked
    history += [asked, ToolMessage("foggy", tool_call_id=asked.tool_calls[0]["id"])]
    assert model.bind_tools([get_weather]).invoke(history).text == "You said: hello"


def structured_output():
    assert model.with_structured_output(City, method="json_schema").invoke("a city") == City(name="sample", people=1)


def web_search():
    answer = model.bind_tools([{"type": "web_search"}]).invoke("Please search.")
    kinds = [block["type"] for block in answer.content_blocks]
    assert "server_tool_call" in kinds, kinds


def unstored_reasoning():
    keeping = ChatOpenAI(**settings, store=False, include=["reasoning.encrypted_content"])
    history = [HumanMessage("think")]
    history += [keeping.invoke(history), HumanMessage("What did you think?")]
    assert keeping.invoke(history).text == "I think so."


globals()[sys.argv[1]]()
