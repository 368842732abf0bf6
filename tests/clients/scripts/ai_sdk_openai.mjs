// The AI SDK with its openai provider. `node ai_sdk_openai.mjs SCENARIO`; the address and the key are in the environment.

import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { Output, generateText, isStepCount, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAI();
const model = provider.responses("m");
const steps = (isStepCount ?? stepCountIs)(3);
const City = z.object({ name: z.string(), people: z.number() });
const tools = {
  get_weather: tool({ description: "The weather.", inputSchema: z.object({ city: z.string() }), execute: async ({ city }) => `${city}: foggy` }),
};
const mcp = provider.tools.mcp({ serverLabel: "docs", serverUrl: process.env.MCP_URL, requireApproval: "never" });

async function generate() {
  const { text, usage, providerMetadata } = await generateText({ model, prompt: "apple" });
  assert.equal(text, "You said: apple");
  assert.ok(usage.totalTokens > 0 && providerMetadata.openai.responseId);
}

async function stream() {
  const result = streamText({ model, prompt: "apple", onError: ({ error }) => assert.fail(error) });
  let text = "";
  for await (const delta of result.textStream) text += delta;
  assert.equal(text, "You said: apple");
}

async function toolLoop() {
  const { text, steps: made } = await generateText({ model, prompt: "How is the weather?", tools, stopWhen: steps });
  assert.deepEqual([text, made[0].toolResults[0].output], ["You said: How is the weather?", "sample: foggy"]);
}

async function streamedToolLoop() {
  const result = streamText({ model, prompt: "How is the weather?", tools, stopWhen: steps, onError: ({ error }) => assert.fail(error) });
  assert.equal(await result.text, "You said: How is the weather?");
  assert.equal((await result.steps)[0].toolResults[0].output, "sample: foggy");
}

async function forcedTool() {
  const { toolCalls } = await generateText({ model, prompt: "hello", tools, toolChoice: { type: "tool", toolName: "get_weather" } });
  assert.deepEqual(toolCalls.map((call) => call.input), [{ city: "sample" }]);
}

async function structuredOutput() {
  const { output } = await generateText({ model, prompt: "a city", output: Output.object({ schema: City }) });
  assert.deepEqual(output, { name: "sample", people: 1 });
}

async function itemReferences() {
  const messages = [{ role: "user", content: "apple" }];
  messages.push(...(await generateText({ model, messages })).response.messages, { role: "user", content: "What did I say?" });
  assert.equal((await generateText({ model, messages })).text, "apple");
}

async function previousResponse() {
  const first = await generateText({ model, prompt: "apple" });
  const providerOptions = { openai: { previousResponseId: first.providerMetadata.openai.responseId } };
  assert.equal((await generateText({ model, prompt: "What did I say?", providerOptions })).text, "apple");
}

async function conversation() {
  const headers = { authorization: `Bearer ${process.env.OPENAI_API_KEY}`, "content-type": "application/json" };
  const made = await fetch(`${process.env.OPENAI_BASE_URL}/conversations`, { method: "POST", headers, body: "{}" });
  const providerOptions = { openai: { conversation: (await made.json()).id } };
  await generateText({ model, prompt: "apple", providerOptions });
  assert.equal((await generateText({ model, prompt: "What did I say?", providerOptions })).text, "apple");
}

async function webSearch() {
  const result = await generateText({ model, prompt: "Please search.", tools: { web_search: provider.tools.webSearch() } });
  assert.equal(result.toolCalls[0].toolName, "web_search");
  const streamed = streamText({ model, prompt: "Please search.", tools: { web_search: provider.tools.webSearch() } });
  assert.equal((await streamed.toolCalls)[0].toolName, "web_search");
}

async function hostedMcp() {
  const messages = [{ role: "user", content: "Please echo." }];
  const first = await generateText({ model, messages, tools: { mcp } });
  assert.match(first.toolCalls[0].toolName, /echo/);
  messages.push(...first.response.messages, { role: "user", content: "more" });
  const second = streamText({ model, messages, tools: { mcp }, onError: ({ error }) => assert.fail(error) });
  assert.equal(await second.text, "You said: more");
}

async function unstoredReasoning() {
  const providerOptions = { openai: { store: false, include: ["reasoning.encrypted_content"], forceReasoning: true } };
  const messages = [{ role: "user", content: "think" }];
  messages.push(...(await generateText({ model, messages, providerOptions })).response.messages);
  messages.push({ role: "user", content: "What did you think?" });
  assert.equal((await generateText({ model, messages, providerOptions })).text, "I think so.");
}

const scenarios = {
  generate,
  stream,
  toolLoop,
  streamedToolLoop,
  forcedTool,
  structuredOutput,
  itemReferences,
  previousResponse,
  conversation,
  webSearch,
  hostedMcp,
  unstoredReasoning,
};
await scenarios[process.argv[2]]();
