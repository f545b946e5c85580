// What it takes to verify a receipt with sigstore-js. Nothing here opens a
// connection.
import { createHash, createPublicKey } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { bundleFromJSON } from '@sigstore/bundle';
import { TrustedRoot } from '@sigstore/protobuf-specs';
import { toSignedEntity, toTrustMaterial, Verifier } from '@sigstore/verify';

const ours = [
  'https://palyra.dev/attestation/tool-intent/v1',
  'https://palyra.dev/attestation/tool-execution/v1',
];

// verifierFor returns a verifier that believes the log of a trusted root and
// attestation keys. Whatever hint a bundle has, it is held to a single key; of
// several, as they are after rotations, to the one that it names.
export function verifierFor(trustedRootFile, ...keyFiles) {
  const root = TrustedRoot.fromJSON(JSON.parse(readFileSync(trustedRootFile, 'utf8')));
  const keys = keyFiles.map((f) => createPublicKey(readFileSync(f)));
  const hintOf = (k) => createHash('sha256').update(k.export({ type: 'spki', format: 'der' })).digest('base64');
  const trust = toTrustMaterial(root, (hint) => {
    const publicKey = keys.length === 1 ? keys[0] : keys.find((k) => hintOf(k) === hint);
    if (!publicKey) throw new Error(`no key with the hint ${hint}`);
    return { publicKey, validFor: () => true };
  });
  return new Verifier(trust, { tlogThreshold: 1, timestampThreshold: 0, ctlogThreshold: 0 });
}

// verify throws unless text is a bundle that verifies and whose statement is
// one of ours: predicate type, first subject, and the subjects that are wanted.
// sigstore-js checks signature, log entry, proof and checkpoint; what the
// statement is about is the business of whoever asks.
export function verify(text, verifier, { type, subjects = [] } = {}) {
  const bundle = bundleFromJSON(JSON.parse(text));
  verifier.verify(toSignedEntity(bundle));
  if (bundle.content.$case !== 'dsseEnvelope') throw new Error('no DSSE envelope');
  const { payload, payloadType, signatures } = bundle.content.dsseEnvelope;
  if (payloadType !== 'application/vnd.in-toto+json') throw new Error(`payload type ${payloadType}`);
  if (signatures.length !== 1) throw new Error(`${signatures.length} signatures`);
  const statement = JSON.parse(payload.toString('utf8'));
  if (statement._type !== 'https://in-toto.io/Statement/v1') throw new Error(`statement type ${statement._type}`);
  if (!(type ? [type] : ours).includes(statement.predicateType)) throw new Error(`predicate type ${statement.predicateType}`);
  const first = statement.subject?.[0];
  if (first?.name !== 'capsule' || `sha256:${first.digest?.sha256}` !== statement.predicate?.capsule?.digest) {
    throw new Error('the first subject is not the capsule of the predicate');
  }
  for (const w of subjects) {
    if (!statement.subject.some((s) => s.name === w.name && s.digest.sha256 === w.sha256)) {
      throw new Error(`no subject ${w.name} with digest ${w.sha256}`);
    }
  }
  return { outcome: statement.predicate.outcome || 'intent', index: bundle.verificationMaterial.tlogEntries[0].logIndex };
}
