// Verifies a receipt with sigstore-js, offline: nothing here opens a connection.
//
//   node verify.mjs --trusted-root trusted_root.json --key att.pub \
//     [--type PREDICATE_TYPE] [--subject NAME=SHA256HEX]... BUNDLE...
//
// Exit status 0: every bundle verifies, and its predicate type and subjects are
// the wanted ones. 1: one does not. 2: usage. sigstore-js checks the signature,
// the log entry, the proof and the checkpoint; what the statement is about is
// the business of whoever asks, so it is checked here.
import { createPublicKey } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { bundleFromJSON } from '@sigstore/bundle';
import { TrustedRoot } from '@sigstore/protobuf-specs';
import { toSignedEntity, toTrustMaterial, Verifier } from '@sigstore/verify';

const ours = [
  'https://palyra.dev/attestation/tool-intent/v1',
  'https://palyra.dev/attestation/tool-execution/v1',
];

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
      key: { type: 'string' },
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
const wantSubjects = (values.subject ?? []).map((s) => {
  const m = /^([^=]+)=([0-9a-f]{64})$/.exec(s);
  if (!m) usage(`--subject ${JSON.stringify(s)}: want NAME=SHA256HEX`);
  return { name: m[1], sha256: m[2] };
});

function trust() {
  const root = TrustedRoot.fromJSON(JSON.parse(readFileSync(values['trusted-root'], 'utf8')));
  const rawBytes = createPublicKey(readFileSync(values.key)).export({ type: 'spki', format: 'pem' });
  // Whatever hint a bundle has, the key that it is held to is the given one.
  return toTrustMaterial(root, () => ({
    publicKey: createPublicKey(rawBytes),
    validFor: () => true,
  }));
}

function verify(file, verifier) {
  const bundle = bundleFromJSON(JSON.parse(readFileSync(file, 'utf8')));
  verifier.verify(toSignedEntity(bundle));
  if (bundle.content.$case !== 'dsseEnvelope') throw new Error('no DSSE envelope');
  const { payload, payloadType, signatures } = bundle.content.dsseEnvelope;
  if (payloadType !== 'application/vnd.in-toto+json') throw new Error(`payload type ${payloadType}`);
  if (signatures.length !== 1) throw new Error(`${signatures.length} signatures`);
  const statement = JSON.parse(payload.toString('utf8'));
  if (statement._type !== 'https://in-toto.io/Statement/v1') throw new Error(`statement type ${statement._type}`);
  const types = values.type ? [values.type] : ours;
  if (!types.includes(statement.predicateType)) throw new Error(`predicate type ${statement.predicateType}`);
  const first = statement.subject?.[0];
  if (first?.name !== 'capsule' || `sha256:${first.digest?.sha256}` !== statement.predicate?.capsule?.digest) {
    throw new Error('the first subject is not the capsule of the predicate');
  }
  for (const w of wantSubjects) {
    if (!statement.subject.some((s) => s.name === w.name && s.digest.sha256 === w.sha256)) {
      throw new Error(`no subject ${w.name} with digest ${w.sha256}`);
    }
  }
  return { type: statement.predicateType, outcome: statement.predicate.outcome, index: bundle.verificationMaterial.tlogEntries[0].logIndex };
}

let failed = false;
let verifier;
try {
  verifier = new Verifier(trust(), { tlogThreshold: 1, timestampThreshold: 0, ctlogThreshold: 0 });
} catch (e) {
  console.error(`verify.mjs: trust: ${e.message}`);
  process.exit(1);
}
for (const file of files) {
  try {
    const v = verify(file, verifier);
    console.log(`${file}: verified by sigstore-js: log index ${v.index}, ${v.outcome || 'intent'}`);
  } catch (e) {
    failed = true;
    console.error(`${file}: REFUSED by sigstore-js: ${e.message}`);
  }
}
process.exit(failed ? 1 : 0);
