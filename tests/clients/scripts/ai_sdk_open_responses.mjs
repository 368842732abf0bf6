// The AI SDK with its open-responses provider. `node ai_sdk_open_responses.mjs SCENARIO`; the address and the key are in the environment.

import assert from "node:assert/strict";
import { createOpenResponses } from "@ai-sdk/open-responses";
import { Output, generateText, isStepCount, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenResponses({
  name: "turnkeep",
  url: `${process.env.OPENAI_BASE_URL}/responses`,
  apiKey: process.env.OPENAI_API_KEY,
});
const model = provider("m");
const steps = (isStepCount ?? stepCountIs)(3);
const City = z.object({ name: z.string(), people: z.number() });
const tools = {
  get_weather: tool({ description: "The weather.", inputSchema: z.object({ city: z.string() }), execute: async ({ city }) => `${city}: foggy` }),
};

async function generate() {
  assert.equal((await generateText({ model, prompt: "apple" })).text, "You said: apple");
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
}

async function structuredOutput() {
  const { output } = await generateText({ model, prompt: "a city", output: Output.object({ schema: City }) });
  assert.deepEqual(output, { name: "sample", people: 1 });
}

async function wholeHistory() {
  const messages = [{ role: "user", content: "apple" }];
  messages.push(...(await generateText({ model, messages })).response.messages, { role: "user", content: "What did I say?" });
  assert.equal((await generateText({ model, messages })).text, "apple");
}

async function image() {
  const pixel =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
  const content = [{ type: "text", text: "a pixel" }, { type: "file", mediaType: "image/png", data: Buffer.from(pixel, "base64") }];
  assert.equal((await generateText({ model, messages: [{ role: "user", content }] })).text, "You said: a pixel");
}

const scenarios = { generate, stream, toolLoop, streamedToolLoop, structuredOutput, wholeHistory, image };
await scenarios[process.argv[2]]();
