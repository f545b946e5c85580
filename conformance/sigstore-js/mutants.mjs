// Judges changed receipts, many in one process.
//
//   node mutants.mjs trusted_root.json att.pub BASE... < changes
//
// A BASE is a file with a receipt. A line of the input is a change of one of
// them: "BASE START END BASE64", numbers from 0 in bytes, the bytes from START
// to END replaced. For each line one character comes out: "v" verified, "r"
// refused. Nothing else is printed.
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { verifierFor, verify } from './receipt.mjs';

const [trustedRoot, key, ...files] = process.argv.slice(2);
const verifier = verifierFor(trustedRoot, key);
const bases = files.map((f) => readFileSync(f));
const out = [];
for await (const line of createInterface({ input: process.stdin })) {
  const [base, start, end, bytes] = line.split(' ');
  const b = bases[Number(base)];
  const changed = Buffer.concat([b.subarray(0, Number(start)), Buffer.from(bytes, 'base64'), b.subarray(Number(end))]);
  try {
    verify(changed.toString('utf8'), verifier);
    out.push('v');
  } catch {
    out.push('r');
  }
}
process.stdout.write(out.join(''));
