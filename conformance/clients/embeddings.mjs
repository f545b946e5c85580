// Asks palyrad for embeddings with OpenAI's client for JavaScript. Prints "ok NAME" for each part.
import assert from "node:assert/strict";
import OpenAI from "openai";

const [baseURL, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });

const parts = {
  async numbers() {
    const plain = await client.embeddings.create({ model: "vectors", input: ["a", "four"] }); // as base64
    assert.deepEqual(plain.data.map((d) => Array.from(d.embedding)), [[0.125, -0, 0], [0.5, -1, 0]]);
    const lists = await client.embeddings.create({ model: "vectors", input: "four", encoding_format: "float", dimensions: 4 });
    assert.deepEqual(lists.data[0].embedding.map((x) => x + 0), [0.5, 0, 0, 0]);
    assert.equal(lists.usage.total_tokens, 4);
  },

  async base64() {
    const r = await client.embeddings.create({ model: "vectors", input: "four", encoding_format: "base64" });
    assert.equal(Buffer.from(r.data[0].embedding, "base64").readFloatLE(0), 0.5);
  },

  async errors() {
    const ask = (more) => client.embeddings.create({ model: "vectors", input: "a", ...more });
    await assert.rejects(ask({ input: [1, 2] }), (e) => e instanceof OpenAI.BadRequestError && e.param === "input[0]");
    await assert.rejects(ask({ input: "busy" }), (e) => e instanceof OpenAI.RateLimitError && e.headers.get("retry-after") === "7");
    await assert.rejects(ask({ model: "none" }), (e) => e instanceof OpenAI.NotFoundError && e.code === "model_not_found");
    await assert.rejects(ask({ input_type: "query" }), (e) => e.param === "input_type" && e.code === "unsupported_parameter");
  },
};

for (const [name, part] of Object.entries(parts)) {
  await part();
  console.log(`ok ${name}`);
}
