// Drives palyrad with Anthropic's client for JavaScript. Prints "ok NAME" for each part.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { jsonSchemaOutputFormat } from "@anthropic-ai/sdk/helpers/json-schema";

const [url, apiKey] = process.argv.slice(2);
const baseURL = new URL("..", url).href.replace(/\/$/, "");
const client = new Anthropic({ baseURL, apiKey, maxRetries: 0 });
const user = (content) => ({ role: "user", content });
const tools = [{ name: "get_weather", input_schema: { type: "object", properties: { city: { type: "string" } } } }];

const parts = {
  async message() {
    const m = await client.messages.create({ model: "real", max_tokens: 100, system: "Be brief.", messages: [user("hello")] });
    assert.equal(m.content[0].text, "You said hello.");
    assert.equal(m.stop_reason, "end_turn");
    assert.deepEqual([m.usage.input_tokens, m.usage.cache_read_input_tokens, m.usage.output_tokens], [8, 3, 4]);
  },

  async tools() {
    const q = { model: "real", max_tokens: 100, tools, messages: [user("weather?")] };
    const first = await client.messages.create(q);
    assert.equal(first.stop_reason, "tool_use");
    const call = first.content.at(-1);
    assert.deepEqual(call.input, { city: "Oslo" });
    q.messages.push({ role: "assistant", content: first.content }, user([{ type: "tool_result", tool_use_id: call.id, content: "21" }]));
    assert.equal((await client.messages.create(q)).content[0].text, "It is 21 degrees.");
  },

  async stream() {
    const stream = client.messages.stream({ model: "real", max_tokens: 100, tools, messages: [user("weather?")] });
    const m = await stream.finalMessage();
    assert.deepEqual(m.content.at(-1).input, { city: "Oslo" });
    const text = [];
    const said = client.messages.stream({ model: "real", max_tokens: 100, messages: [user("hello")] }).on("text", (t) => text.push(t));
    assert.equal((await said.finalMessage()).content[0].text, "You said hello.");
    assert.equal(text.join(""), "You said hello.");
  },

  async format() {
    const format = jsonSchemaOutputFormat(tools[0].input_schema);
    const m = await client.messages.parse({ model: "real", max_tokens: 100, output_config: { format }, messages: [user("where?")] });
    assert.deepEqual(m.parsed_output, { city: "Oslo" });
  },

  // What the client has as beta: it says so in the query, and runs tools itself.
  async beta() {
    const q = { model: "real", max_tokens: 100 };
    const m = await client.beta.messages.create({ ...q, betas: ["effort-2025-11-24"], output_config: { effort: "low" }, messages: [user("hello"), { role: "system", content: "Be brief." }] });
    assert.equal(m.content[0].text, "You said hello.");
    const weather = betaTool({ name: "get_weather", description: "", inputSchema: tools[0].input_schema, run: ({ city }) => (assert.equal(city, "Oslo"), "21") });
    const last = await client.beta.messages.toolRunner({ ...q, tools: [weather], messages: [user("weather?")] });
    assert.equal(last.content[0].text, "It is 21 degrees.");
  },

  async errors() {
    const wrong = new Anthropic({ baseURL, apiKey: "palyra_wrong", maxRetries: 0 });
    const q = { model: "real", max_tokens: 100, messages: [user("hello")] };
    await assert.rejects(wrong.messages.create(q), Anthropic.AuthenticationError);
    await assert.rejects(client.messages.create({ ...q, top_k: 3 }), (e) => e instanceof Anthropic.BadRequestError && /top_k/.test(e.message));
    await assert.rejects(client.messages.create({ ...q, messages: [user("busy")] }), Anthropic.RateLimitError);
  },

  async agent() {
    const m = await client.messages.create({ model: "agent", max_tokens: 100, messages: [user("what is there?")] });
    assert.deepEqual(m.content.map((b) => b.text), ["I look.", "There is one file."]);
  },

  // The agent may call a tool of the client's, and goes on with the result where it ended.
  async functions() {
    const q = { model: "agent/calls", max_tokens: 100, tools };
    const first = await client.messages.create({ ...q, metadata: { palyra_session: "new" }, messages: [user("weather?")] });
    assert.equal(first.stop_reason, "tool_use");
    assert.equal(first.content[0].text, "I ask you.");
    const call = first.content.at(-1);
    assert.deepEqual([call.type, call.name, call.input], ["tool_use", "get_weather", { city: "Oslo" }]);
    const result = user([{ type: "tool_result", tool_use_id: call.id, content: "rain" }]);
    const second = client.messages.stream({ ...q, metadata: { palyra_session: first.palyra.session }, messages: [result] });
    const m = await second.finalMessage();
    assert.deepEqual([m.stop_reason, m.content.map((b) => b.text)], ["end_turn", ["It rains."]]);
    // Or the conversation whole, as clients send it that know of no sessions.
    const again = await client.messages.create({ ...q, metadata: { palyra_session: "new" }, messages: [user("weather?")] });
    const whole = [user("weather?"), { role: "assistant", content: again.content }, user([{ ...result.content[0], tool_use_id: again.content.at(-1).id }])];
    const last = await client.messages.create({ ...q, metadata: { palyra_session: again.palyra.session }, messages: whole });
    assert.equal(last.content[0].text, "It rains.");
    await assert.rejects(client.messages.create({ ...q, messages: [user("weather?")] }), (e) => e instanceof Anthropic.BadRequestError && /tools/.test(e.message));
  },
};

for (const [name, part] of Object.entries(parts)) {
  await part();
  console.log(`ok ${name}`);
}
