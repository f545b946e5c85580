// Drives palyrad with OpenAI's client for JavaScript. Prints "ok NAME" for each part.
import assert from "node:assert/strict";
import OpenAI from "openai";

const [baseURL, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false };
const user = (content) => [{ role: "user", content }];

const parts = {
  async models() {
    const ids = [];
    for await (const m of client.models.list()) ids.push(m.id);
    for (const id of ["real", "agent", "agent/real"]) assert.ok(ids.includes(id), ids.join());
    assert.equal((await client.models.retrieve("agent/real")).owned_by, "openai_chat");
  },

  async chat() {
    const tools = [{ type: "function", function: { name: "get_weather", parameters, strict: true } }];
    const first = await client.chat.completions.create({ model: "real", messages: user("weather?"), tools });
    const [call] = first.choices[0].message.tool_calls;
    assert.equal(first.choices[0].finish_reason, "tool_calls");
    assert.deepEqual(JSON.parse(call.function.arguments), { city: "Oslo" });
    const second = await client.chat.completions.create({
      model: "real", tools,
      messages: [...user("weather?"), first.choices[0].message, { role: "tool", tool_call_id: call.id, content: "21" }],
    });
    assert.equal(second.choices[0].message.content, "It is 21 degrees.");
  },

  async stream() {
    const stream = client.chat.completions.stream({ model: "real", messages: user("hello"), stream_options: { include_usage: true } });
    const pieces = [];
    stream.on("content", (delta) => pieces.push(delta));
    const all = await stream.finalChatCompletion();
    assert.equal(pieces.join(""), "You said hello.");
    assert.equal(all.choices[0].message.content, "You said hello.");
    assert.equal((await stream.totalUsage()).total_tokens, 15);
  },

  async reasons() {
    const ask = (summary) => client.responses.stream({ model: "reasons", input: "2+2?", reasoning: { summary } });
    const pieces = [];
    const first = ask("auto");
    first.on("response.reasoning_summary_text.delta", (e) => pieces.push(e.delta));
    const r = await first.finalResponse();
    assert.deepEqual(pieces, ["Two and two."]);
    assert.equal(r.output_text, "Four.");
    assert.deepEqual(r.output[0].summary, [{ type: "summary_text", text: "Two and two." }]);
    assert.deepEqual((await ask(null).finalResponse()).output[0].summary, []);
    const chat = client.responses.create({ model: "real", input: "2+2?", reasoning: { summary: "auto" } });
    await assert.rejects(chat, (e) => e instanceof OpenAI.BadRequestError && /a summary of reasoning/.test(e.message));
  },

  async runTools() {
    let asked;
    const runner = client.chat.completions.runTools({
      model: "real", messages: user("weather?"),
      tools: [{ type: "function", function: { name: "get_weather", parameters, parse: JSON.parse, function: (a) => { asked = a.city; return "21"; } } }],
    });
    assert.equal(await runner.finalContent(), "It is 21 degrees.");
    assert.equal(asked, "Oslo");
  },

  async errors() {
    const wrong = new OpenAI({ baseURL, apiKey: "palyra_wrong", maxRetries: 0 });
    await assert.rejects(wrong.models.list(), (e) => e instanceof OpenAI.AuthenticationError && e.code === "invalid_api_token");
    const ask = (more) => client.chat.completions.create({ model: "real", messages: user("hello"), ...more });
    await assert.rejects(ask({ seed: 1 }), (e) => e instanceof OpenAI.BadRequestError && e.param === "seed" && e.type === "invalid_request_error");
    await assert.rejects(ask({ model: "none" }), (e) => e instanceof OpenAI.NotFoundError && e.code === "model_not_found");
    await assert.rejects(ask({ messages: user("busy") }), (e) => e instanceof OpenAI.RateLimitError && e.headers.get("retry-after") === "7");
    await assert.rejects(ask({ messages: user([{ type: "image_url", image_url: { url: "data:," } }]) }), (e) => e.param === "messages[0].content[0].type");
  },

  async responses() {
    const tools = [{ type: "function", name: "get_weather", parameters, strict: false }];
    const first = await client.responses.create({ model: "real", input: "weather?", tools, metadata: { mine: "1" } });
    assert.equal(first.metadata.mine, "1");
    const [call] = first.output.filter((o) => o.type === "function_call");
    const second = await client.responses.create({
      model: "real", previous_response_id: first.id, tools,
      input: [{ type: "function_call_output", call_id: call.call_id, output: "21" }],
    });
    assert.equal(second.output_text, "It is 21 degrees.");
    assert.equal((await client.responses.retrieve(second.id)).status, "completed");
    const replayed = await client.responses.create({ model: "real", store: false, input: [{ role: "user", content: "weather?" }, ...first.output, { type: "function_call_output", call_id: call.call_id, output: "21" }] });
    assert.equal(replayed.output_text, "It is 21 degrees.");
    await assert.rejects(client.responses.retrieve(replayed.id), OpenAI.NotFoundError);
  },

  async events() {
    const stream = client.responses.stream({ model: "real", input: "hello" });
    const kinds = [];
    for await (const e of stream) kinds.push(e.type);
    const all = await stream.finalResponse();
    assert.equal(all.output_text, "You said hello.");
    assert.equal(kinds[0], "response.created");
    assert.equal(kinds.at(-1), "response.completed");
  },

  async stored() {
    const made = [];
    for await (const e of await client.responses.create({ model: "real", input: "hello", instructions: "Be brief.", metadata: { mine: "1" }, stream: true })) made.push(e);
    const { id } = made[0].response;
    const got = await client.responses.retrieve(id);
    assert.deepEqual([got.instructions, got.metadata, got.output_text], ["Be brief.", { mine: "1" }, "You said hello."]);
    const again = [];
    for await (const e of await client.responses.retrieve(id, { stream: true, starting_after: 3 })) again.push(e);
    const seen = (all) => all.map((e) => [e.sequence_number, e.type, e.delta]);
    assert.deepEqual(seen(again), seen(made.slice(4)));
    assert.equal(again.at(-1).response.output[0].content[0].text, "You said hello.");
    const next = await client.responses.create({ model: "real", previous_response_id: id, input: "more" });
    const items = [];
    for await (const i of client.responses.inputItems.list(next.id, { limit: 2 })) items.push([i.role, i.content[0].text]);
    assert.deepEqual(items, [["user", "more"], ["assistant", "You said hello."], ["user", "hello"]]);
    await client.responses.delete(id);
    for (const gone of [() => client.responses.retrieve(id), () => client.responses.delete(id)]) await assert.rejects(gone(), (e) => e instanceof OpenAI.NotFoundError && e.code === "response_not_found");
    assert.equal((await client.responses.create({ model: "real", previous_response_id: next.id, input: "still" })).output_text, "You said still.");
  },

  // A client goes from a stream in the background and comes back for the rest.
  async background() {
    const whole = { text: "", numbers: [] };
    const take = (e) => {
      whole.numbers.push(e.sequence_number);
      if (e.type === "response.output_text.delta") whole.text += e.delta;
    };
    let id;
    for await (const e of await client.responses.create({ model: "agent/looks", input: "what is there?", background: true, stream: true })) {
      id ??= e.response.id;
      take(e);
      if (e.type === "response.content_part.added") break; // which ends the request
    }
    let last;
    for await (const e of await client.responses.retrieve(id, { stream: true, starting_after: whole.numbers.at(-1) })) {
      take(e);
      last = e;
    }
    assert.equal(last.type, "response.completed");
    assert.equal(last.response.background, true);
    assert.equal(whole.text, "I look.There is one file.");
    assert.deepEqual(whole.numbers, whole.numbers.map((_, i) => i));
    await assert.rejects(client.responses.retrieve("resp_" + "0".repeat(32), { stream: true }), OpenAI.NotFoundError);
  },

  async agent() {
    const first = await client.responses.create({ model: "agent", input: "what is there?" });
    assert.deepEqual(first.output.map((o) => o.type), ["message", "palyra:tool_call", "message"]);
    assert.equal(first.output[1].outcome, "executed");
    const second = await client.responses.create({ model: "agent", previous_response_id: first.id, input: "what did you say?" });
    assert.equal(second.output_text, "I said so.");
    const stream = await client.chat.completions.create({ model: "agent", stream: true, messages: user("what is there?") });
    let text = "";
    for await (const c of stream) text += c.choices[0]?.delta.content ?? "";
    assert.equal(text, "I look.\n\nThere is one file.");
    await assert.rejects(client.chat.completions.create({ model: "agent", messages: user("x"), tools: [{ type: "function", function: { name: "f" } }] }), (e) => e.param === "tools");
  },

  // The client's own loop, which sends the conversation whole each time.
  async functions() {
    const headers = { authorization: `Bearer ${apiKey}`, "content-type": "application/json", "idempotency-key": "functions" };
    const { id } = await (await fetch(new URL("../api/v1/sessions", baseURL), { method: "POST", headers, body: "{}" })).json();
    let asked;
    const runner = client.chat.completions.runTools({
      model: "agent/calls", messages: user("weather?"), metadata: { palyra_session: id },
      tools: [{ type: "function", function: { name: "get_weather", parameters, parse: JSON.parse, function: (a) => { asked = a.city; return "rain"; } } }],
    });
    assert.equal(await runner.finalContent(), "It rains.");
    assert.equal(asked, "Oslo");
  },

  async cancel() {
    const stream = await client.chat.completions.create({ model: "agent/touches", stream: true, messages: user("make it") });
    for await (const c of stream) if (c.choices[0]?.delta.content) break; // which ends the request
    const waits = await client.responses.create({ model: "agent/touches", input: "make it" });
    assert.equal(waits.status, "incomplete");
    assert.equal((await client.responses.cancel(waits.id)).status, "cancelled");
  },
};

for (const [name, part] of Object.entries(parts)) {
  await part();
  console.log(`ok ${name}`);
}
