// The openai package for Node. `node openai_node.mjs SCENARIO`; the address and the key are in the environment.

import assert from "node:assert/strict";
import { setTimeout } from "node:timers/promises";
import OpenAI from "openai";
import { zodTextFormat } from "openai/helpers/zod";
import { ResponsesWS } from "openai/resources/responses/ws";
import { z } from "zod";

const client = new OpenAI({ maxRetries: 0 });
const City = z.object({ name: z.string(), people: z.number() });
const weather = {
  type: "function",
  name: "get_weather",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false },
  strict: true,
};

async function createAndContinue() {
  const first = await client.responses.create({ model: "m", input: "apple" });
  const second = await client.responses.create({ model: "m", input: "What did I say?", previous_response_id: first.id });
  assert.equal(second.output_text, "apple");
  assert.equal((await client.responses.retrieve(second.id)).output_text, "apple");
  const roles = [];
  for await (const item of client.responses.inputItems.list(second.id, { limit: 1 })) roles.push(item.role);
  assert.deepEqual(roles, ["user", "assistant", "user"]);
  await client.responses.delete(first.id);
}

async function streamHelper() {
  const stream = client.responses.stream({ model: "m", input: "apple" });
  let text = "";
  for await (const event of stream) if (event.type === "response.output_text.delta") text += event.delta;
  assert.equal(text, "You said: apple");
  assert.equal((await stream.finalResponse()).output_text, text);
}

async function functionTool() {
  const stream = client.responses.stream({ model: "m", input: "hello", tools: [weather], tool_choice: "required" });
  const asked = await stream.finalResponse();
  const call = asked.output[0];
  assert.deepEqual([call.type, call.name, JSON.parse(call.arguments)], ["function_call", "get_weather", { city: "sample" }]);
  const output = { type: "function_call_output", call_id: call.call_id, output: "foggy" };
  const answered = await client.responses.create({ model: "m", input: [output], previous_response_id: asked.id, tools: [weather] });
  assert.equal(answered.output_text, "You said: hello");
}

async function structuredOutput() {
  const parsed = await client.responses.parse({ model: "m", input: "a city", text: { format: zodTextFormat(City, "city") } });
  assert.deepEqual(parsed.output_parsed, { name: "sample", people: 1 });
}

async function hostedTools() {
  const mcp = { type: "mcp", server_label: "docs", server_url: process.env.MCP_URL, require_approval: "never" };
  const searched = await client.responses.stream({ model: "m", input: "Please search.", tools: [{ type: "web_search" }] }).finalResponse();
  assert.equal(searched.output[0].type, "web_search_call");
  const echoed = await client.responses.stream({ model: "m", input: "Please echo.", tools: [mcp] }).finalResponse();
  assert.deepEqual(echoed.output.map((item) => item.type), ["mcp_list_tools", "mcp_call", "message"]);
}

async function conversation() {
  const conversation = await client.conversations.create({ items: [{ type: "message", role: "user", content: "apple" }] });
  const answered = await client.responses.create({ model: "m", input: "What did I say?", conversation: conversation.id });
  assert.equal(answered.output_text, "apple");
  const ids = [];
  for await (const item of client.conversations.items.list(conversation.id, { limit: 1 })) ids.push(item.id);
  assert.equal(new Set(ids).size, 3);
  await client.conversations.delete(conversation.id);
}

async function background() {
  let response = await client.responses.create({ model: "m", input: "apple", background: true });
  while (["queued", "in_progress"].includes(response.status)) {
    await setTimeout(100);
    response = await client.responses.retrieve(response.id);
  }
  assert.deepEqual([response.status, response.output_text], ["completed", "You said: apple"]);
}

async function countingAndCompacting() {
  assert.ok((await client.responses.inputTokens.count({ model: "m", input: "apple" })).input_tokens > 0);
  const compacted = await client.responses.compact({ model: "m", input: [{ role: "user", content: "apple" }] });
  assert.equal(compacted.output.at(-1).type, "compaction");
  await client.responses.create({ model: "m", input: [...compacted.output, { role: "user", content: "pear" }] });
}

async function unstoredReasoning() {
  const settings = { model: "m", store: false, include: ["reasoning.encrypted_content"] };
  const history = [{ role: "user", content: "think" }];
  history.push(...(await client.responses.create({ input: history, ...settings })).output);
  history.push({ role: "user", content: "What did you think?" });
  assert.equal((await client.responses.create({ input: history, ...settings })).output_text, "I think so.");
}

async function unknownResponse() {
  const asked = client.responses.create({ model: "m", input: "x", previous_response_id: `resp_${"1".padStart(40, "0")}` });
  await assert.rejects(asked, { status: 400, code: "previous_response_not_found", param: "previous_response_id" });
}

async function websocket() {
  const socket = new ResponsesWS(client);
  const ended = (more) =>
    new Promise((resolve, reject) => {
      socket.once("response.completed", (event) => resolve(event.response));
      socket.once("error", reject);
      socket.send({ type: "response.create", model: "m", store: false, ...more });
    });
  const first = await ended({ input: "apple" });
  const second = await ended({ input: "What did I say?", previous_response_id: first.id });
  assert.equal(second.output[0].content[0].text, "apple");
  socket.close();
}

const scenarios = {
  createAndContinue,
  streamHelper,
  functionTool,
  structuredOutput,
  hostedTools,
  conversation,
  background,
  countingAndCompacting,
  unstoredReasoning,
  unknownResponse,
  websocket,
};
await scenarios[process.argv[2]]();
