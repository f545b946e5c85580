// Drives the agents of conformance/scene with OpenAI's client for JavaScript, as make demo does by the
// command line. Each line that it prints is a JSON object: {"ok": PART, "runs": […]}, or
// {"ask": REQUEST, …}, which a person answers before it reads the next line.
import assert from "node:assert/strict";
import { createInterface } from "node:readline/promises";
import OpenAI from "openai";

const [baseURL, apiKey, text] = process.argv.slice(2);
const scene = JSON.parse(text);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const say = (o) => console.log(JSON.stringify(o));
const calls = (r) => r.output.filter((o) => o.type === "palyra:tool_call");
const requests = (r) => r.output.filter((o) => o.type === "palyra:approval_request");

// person has the request answered that a response ends with, by someone at the machine.
async function person(r, path) {
  assert.equal(r.status, "incomplete");
  assert.equal(r.incomplete_details.reason, "palyra:approval_required");
  const last = r.output.at(-1);
  assert.equal(last.type, "palyra:approval_request");
  assert.equal(last.status, "incomplete");
  assert.match(calls(r).at(-1).arguments, new RegExp(path));
  assert.equal(last.text, undefined); // the token may not read policy, which the text has
  assert.deepEqual((await client.responses.retrieve(r.id)).output, r.output);
  say({ ask: last.approval, capsule: last.capsule, path });
  assert.equal((await lines.next()).value, "answered");
}

const parts = {
  // It looks, tests, edits, tests again and remembers. The edit is in a layer.
  async shop() {
    const first = await client.responses.create({ model: "agent/shop", input: scene.Task, metadata: { palyra_staged: "true" } });
    assert.equal(first.status, "completed");
    assert.equal(calls(first).map((c) => c.tool).join(" "), scene.Calls);
    for (const c of calls(first)) assert.deepEqual([c.outcome, c.exit, c.status], ["executed", 0, "completed"], c.tool);
    assert.equal(first.output.at(-1).content[0].text, scene.Tested);
    const second = await client.responses.create({ model: "agent/shop", previous_response_id: first.id, input: scene.Asked });
    assert.equal(second.output_text, scene.Told);
    assert.equal(second.palyra.session, first.palyra.session);
    // A session that knows nothing of the first finds what that has remembered.
    const later = await client.responses.create({ model: "agent/later", input: scene.Again });
    assert.notEqual(later.palyra.session, first.palyra.session);
    assert.deepEqual(calls(later).map((c) => [c.tool, c.outcome]), [["memory.search", "executed"]]);
    assert.equal(later.output_text, scene.Remembered);
    return [first, second, later];
  },

  // A page tells it to send a secret away, and it obeys. The program of this client can't say yes.
  async obedient() {
    const model = "agent/obedient";
    let r = await client.responses.create({ model, input: scene.Question });
    assert.deepEqual(calls(r).map((c) => [c.tool, c.outcome]), [["process.run", "executed"], ["process.run", undefined]]);
    await person(r, scene.Comments);
    const { id } = r;
    r = await client.responses.create({ model, previous_response_id: id });
    assert.equal(r.id, id);
    await person(r, scene.Changes);
    r = await client.responses.create({ model, previous_response_id: id });
    assert.equal(r.id, id);
    assert.equal(r.status, "completed");
    assert.deepEqual(calls(r).map((c) => c.outcome), ["executed", "not_approved", "executed"]);
    assert.deepEqual(requests(r).map((a) => [a.state, a.status]), [["denied", "completed"], ["approved", "completed"]]);
    assert.equal(r.output.at(-1).content[0].text, scene.Answered);
    assert.deepEqual((await client.responses.retrieve(id)).output, r.output);
    return [r];
  },

  // The control: the same call in a session that has read no page asks no one.
  async eager() {
    const r = await client.responses.create({ model: "agent/eager", input: scene.Post });
    assert.equal(r.status, "completed");
    assert.deepEqual(calls(r).map((c) => c.outcome), ["executed"]);
    assert.equal(r.output_text, scene.Sent);
    return [r];
  },
};

for (const [name, part] of Object.entries(parts)) {
  const runs = (await part()).map((r) => ({ run: r.palyra.run, receipts: r.palyra.receipts }));
  say({ ok: name, runs });
}
process.exit(0); // standard input is still open
