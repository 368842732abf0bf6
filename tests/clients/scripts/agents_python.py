"""The OpenAI Agents SDK for Python. `python agents_python.py SCENARIO`; the address and the key are in the environment."""

import asyncio
import os
import sys

from agents import (
    Agent,
    HostedMCPTool,
    ModelSettings,
    OpenAIConversationsSession,
    OpenAIResponsesCompactionSession,
    Runner,
    SQLiteSession,
    WebSearchTool,
    function_tool,
    set_default_openai_responses_transport,
)
from pydantic import BaseModel

CITIES = []


class City(BaseModel):
    name: str
    people: int


@function_tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    CITIES.append(city)
    return "foggy"


def agent(**settings):
    return Agent(name="agent", instructions="Be brief.", **{"model": "m", **settings})


async def function_tool_loop():
    result = await Runner.run(agent(tools=[get_weather]), "How is the weather?")
    assert (CITIES, result.final_output) == (["sample"], "You said: How is the weather?"), result


async def streamed():
    result = Runner.run_streamed(agent(tools=[get_weather]), "How is the weather?")
    kinds = [event.type async for event in result.stream_events()]
    assert (CITIES, result.final_output) == (["sample"], "You said: How is the weather?"), result
    assert "raw_response_event" in kinds


async def structured_output():
    result = await Runner.run(agent(output_type=City), "a city")
    assert result.final_output == City(name="sample", people=1), result


async def previous_response():
    first = await Runner.run(agent(), "apple")
    second = await Runner.run(agent(), "What did I say?", previous_response_id=first.last_response_id)
    assert second.final_output == "apple", second


async def chained_tools():
    result = await Runner.run(agent(tools=[get_weather]), "How is the weather?", auto_previous_response_id=True)
    assert result.final_output == "You said: How is the weather?", result


async def local_session():
    session = SQLiteSession("one")
    await Runner.run(agent(), "apple", session=session)
    result = await Runner.run(agent(), "What did I say?", session=session)
    assert result.final_output == "apple", result


async def conversations_session():
    session = OpenAIConversationsSession()
    await Runner.run(agent(), "apple", session=session)
    result = await Runner.run(agent(), "What did I say?", session=session)
    assert result.final_output == "apple", result
    assert len(await session.get_items()) == 4


async def compaction_session():
    session = OpenAIResponsesCompactionSession("one", SQLiteSession("one"), model="gpt-5.5", should_trigger_compaction=lambda context: True)
    await Runner.run(agent(model="gpt-5.5"), "apple", session=session)
    kinds = [item.get("type") for item in await session.get_items()]
    assert "compaction" in kinds, kinds
    result = await Runner.run(agent(model="gpt-5.5"), "pear", session=session)
    assert result.final_output == "You said: pear", result


async def unstored_reasoning():
    settings = ModelSettings(store=False, response_include=["reasoning.encrypted_content"])
    first = await Runner.run(agent(model_settings=settings), "think")
    second = await Runner.run(agent(model_settings=settings), [*first.to_input_list(), {"role": "user", "content": "What did you think?"}])
    assert second.final_output == "I think so.", second


async def web_search():
    result = await Runner.run(agent(tools=[WebSearchTool()]), "Please search.")
    assert [item.raw_item.type for item in result.new_items][:1] == ["web_search_call"], result.new_items


async def hosted_mcp():
    server = {"type": "mcp", "server_label": "docs", "server_url": os.environ["MCP_URL"], "require_approval": "never"}
    result = await Runner.run(agent(tools=[HostedMCPTool(tool_config=server)]), "Please echo.")
    calls = [item.raw_item for item in result.new_items if item.raw_item.type == "mcp_call"]
    assert [(call.name, call.output) for call in calls] == [("echo", "sample")], result.new_items
    again = await Runner.run(
        agent(tools=[HostedMCPTool(tool_config=server)]), [*result.to_input_list(), {"role": "user", "content": "more"}]
    )
    assert again.final_output == "You said: more", again


async def mcp_approval():
    server = {"type": "mcp", "server_label": "docs", "server_url": os.environ["MCP_URL"], "require_approval": "always"}
    asking = agent(tools=[HostedMCPTool(tool_config=server)])
    result = await Runner.run(asking, "Please echo.")
    state = result.to_state()
    for interruption in result.interruptions:
        state.approve(interruption)
    result = await Runner.run(asking, state)
    outputs = [item.raw_item.output for item in result.new_items if getattr(item.raw_item, "type", "") == "mcp_call"]
    assert outputs == ["sample"], result.new_items


async def websocket():
    set_default_openai_responses_transport("websocket")
    result = await Runner.run(agent(tools=[get_weather]), "How is the weather?")
    assert (CITIES, result.final_output) == (["sample"], "You said: How is the weather?"), result


asyncio.run(globals()[sys.argv[1]]())
