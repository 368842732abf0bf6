// The OpenAI Agents SDK for Node. `node agents_node.mjs SCENARIO`; the address and the key are in the environment.

import assert from "node:assert/strict";
import {
  Agent,
  MemorySession,
  OpenAIConversationsSession,
  OpenAIResponsesCompactionSession,
  hostedMcpTool,
  run,
  setOpenAIResponsesTransport,
  tool,
  webSearchTool,
} from "@openai/agents";
import { z } from "zod";

const cities = [];
const City = z.object({ name: z.string(), people: z.number() });
const weather = tool({
  name: "get_weather",
  description: "The weather of a city.",
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => cities.push(city) && "foggy",
});
const mcp = (requireApproval) => hostedMcpTool({ serverLabel: "docs", serverUrl: process.env.MCP_URL, requireApproval });
const agent = (settings = {}) => new Agent({ name: "agent", instructions: "Be brief.", model: "m", ...settings });
const kindsOf = (result) => result.newItems.map((item) => item.rawItem.name ?? item.rawItem.type);

async function functionToolLoop() {
  const result = await run(agent({ tools: [weather] }), "How is the weather?");
  assert.deepEqual([cities, result.finalOutput], [["sample"], "You said: How is the weather?"]);
}

async function streamed() {
  const result = await run(agent({ tools: [weather] }), "How is the weather?", { stream: true });
  for await (const event of result) assert.ok(event.type);
  await result.completed;
  assert.deepEqual([cities, result.finalOutput], [["sample"], "You said: How is the weather?"]);
}

async function structuredOutput() {
  const result = await run(agent({ outputType: City }), "a city");
  assert.deepEqual(result.finalOutput, { name: "sample", people: 1 });
}

async function previousResponse() {
  const first = await run(agent(), "apple");
  const second = await run(agent(), "What did I say?", { previousResponseId: first.lastResponseId });
  assert.equal(second.finalOutput, "apple");
}

async function localSession() {
  const session = new MemorySession();
  await run(agent(), "apple", { session });
  assert.equal((await run(agent(), "What did I say?", { session })).finalOutput, "apple");
}

async function conversationsSession() {
  const session = new OpenAIConversationsSession();
  await run(agent(), "apple", { session });
  assert.equal((await run(agent(), "What did I say?", { session })).finalOutput, "apple");
  assert.equal((await session.getItems()).length, 4);
}

async function compactionSession() {
  const settings = { underlyingSession: new MemorySession(), model: "gpt-5.5", shouldTriggerCompaction: () => true };
  const session = new OpenAIResponsesCompactionSession(settings);
  await run(agent({ model: "gpt-5.5" }), "apple", { session });
  const kinds = (await session.getItems()).map((item) => item.type);
  assert.ok(kinds.includes("compaction"), String(kinds));
  assert.equal((await run(agent({ model: "gpt-5.5" }), "pear", { session })).finalOutput, "You said: pear");
}

async function unstoredReasoning() {
  const modelSettings = { store: false, providerData: { include: ["reasoning.encrypted_content"] } };
  const first = await run(agent({ modelSettings }), "think");
  const second = await run(agent({ modelSettings }), [...first.history, { role: "user", content: "What did you think?" }]);
  assert.equal(second.finalOutput, "I think so.");
}

async function webSearch() {
  const result = await run(agent({ tools: [webSearchTool()] }), "Please search.", { stream: true });
  await result.completed;
  assert.equal(kindsOf(result)[0], "web_search_call");
}

async function hostedMcp() {
  const result = await run(agent({ tools: [mcp("never")] }), "Please echo.");
  assert.ok(result.output.some((item) => item.type === "hosted_tool_call" && item.output === "sample"), JSON.stringify(result.output));
  const again = await run(agent({ tools: [mcp("never")] }), [...result.history, { role: "user", content: "more" }]);
  assert.equal(again.finalOutput, "You said: more");
}

async function mcpApproval() {
  const asking = agent({ tools: [mcp("always")] });
  let result = await run(asking, "Please echo.");
  assert.equal(result.interruptions.length, 1);
  result.interruptions.forEach((interruption) => result.state.approve(interruption));
  result = await run(asking, result.state);
  assert.ok(result.output.some((item) => item.type === "hosted_tool_call" && item.output === "sample"), JSON.stringify(result.output));
}

async function websocket() {
  setOpenAIResponsesTransport("websocket");
  const result = await run(agent({ tools: [weather] }), "How is the weather?");
  assert.deepEqual([cities, result.finalOutput], [["sample"], "You said: How is the weather?"]);
  process.exit();
}

const scenarios = {
  functionToolLoop,
  streamed,
  structuredOutput,
  previousResponse,
  localSession,
  conversationsSession,
  compactionSession,
  unstoredReasoning,
  webSearch,
  hostedMcp,
  mcpApproval,
  websocket,
};
await scenarios[process.argv[2]]();
