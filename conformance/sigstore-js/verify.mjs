// Verifies receipts with sigstore-js, offline.
//
//   node verify.mjs --trusted-root trusted_root.json --key att.pub [--key att-HEX.pub]... \
//     [--type PREDICATE_TYPE] [--subject NAME=SHA256HEX]... BUNDLE...
//
// Exit status 0: every bundle verifies, and its predicate type and subjects are
// the wanted ones. 1: one does not. 2: usage.
import { readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { verifierFor, verify } from './receipt.mjs';

function usage(why) {
  console.error(`verify.mjs: ${why}`);
  process.exit(2);
}

let args;
try {
  args = parseArgs({
    allowPositionals: true,
    options: {
      'trusted-root': { type: 'string' },
      key: { type: 'string', multiple: true },
      type: { type: 'string' },
      subject: { type: 'string', multiple: true },
    },
  });
} catch (e) {
  usage(e.message);
}
const { values, positionals: files } = args;
if (!values['trusted-root'] || !values.key || files.length === 0) {
  usage('want --trusted-root FILE --key FILE BUNDLE...');
}
const subjects = (values.subject ?? []).map((s) => {
  const m = /^([^=]+)=([0-9a-f]{64})$/.exec(s);
  if (!m) usage(`--subject ${JSON.stringify(s)}: want NAME=SHA256HEX`);
  return { name: m[1], sha256: m[2] };
});

let verifier;
try {
  verifier = verifierFor(values['trusted-root'], ...values.key);
} catch (e) {
  console.error(`verify.mjs: trust: ${e.message}`);
  process.exit(1);
}
let failed = false;
for (const file of files) {
  try {
    const v = verify(readFileSync(file, 'utf8'), verifier, { type: values.type, subjects });
    console.log(`${file}: verified by sigstore-js: log index ${v.index}, ${v.outcome}`);
  } catch (e) {
    failed = true;
    console.error(`${file}: REFUSED by sigstore-js: ${e.message}`);
  }
}
process.exit(failed ? 1 : 0);
