// Makes exported decisions again with the official Cedar engine.
//
//   node bundle.mjs BUNDLE.json...        (palyra policy export DECISION)
//
// Each question of a bundle is put to the engine, with the bundle's policies as
// text, its schema, entities and context; the engine validates the request. What
// follows from the answers is worked out here, from docs/formats/policy.md, and
// must be the bundle's answer. The capsule, principal and action of each
// question must be those of the request.
//
// Exit status 0: all agree. 1: some differ. 2: a file is not a bundle that the
// engine accepts.
import { readFileSync } from 'node:fs';
import cedar from '@cedar-policy/cedar-wasm/nodejs';

class Unusable extends Error {}
// about has a use's secret and host.
const about = (use) => [/=(\S+)/.exec(use)[1], /(?:^| )([^\s/]+:\d+)(?:\/\S*)?(?: form:\S+)?(?: keep)?(?: revoke)?$/.exec(use)[1]];
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

// named is the name of a text that the engine has parsed, and keeps. Most bundles have the same ones.
const kept = new Map();
function named(preparse, value) {
  const text = JSON.stringify(value);
  if (!kept.has(text)) {
    const answer = preparse(`${kept.size}`, value);
    if (answer.type !== 'success') throw new Unusable(JSON.stringify(answer.errors));
    kept.set(text, `${kept.size}`);
  }
  return kept.get(text);
}

function ask(bundle, q) {
  const answer = cedar.statefulIsAuthorized({
    principal: q.principal, action: q.action, resource: q.resource, context: q.context,
    preparsedSchemaName: named(cedar.preparseSchema, bundle.schema), validateRequest: true,
    preparsedPolicySetId: named(cedar.preparsePolicySet, { staticPolicies: bundle.policies }), entities: q.entities,
  });
  if (answer.type !== 'success') throw new Unusable(JSON.stringify(answer.errors));
  const { decision, diagnostics } = answer.response;
  const errors = [...new Set(diagnostics.errors.map((e) => e.policyId))].sort();
  return { allow: decision === 'allow' && errors.length === 0, policies: [...diagnostics.reason].sort(), errors };
}

const names = (text, network) => new RegExp(`context\\.network == "${network}"|"${network}" == context\\.network|\\[[^\\]]*"${network}"[^\\]]*\\]\\.contains\\(context\\.network\\)`).test(text);

// conclude is "How a request is decided": the questions come in its order, each
// pass with the one about the interpreter first if it was asked.
function conclude(bundle, answers) {
  const union = (...lists) => [...new Set(lists.flat())].sort();
  const failed = (a) => ({ effect: 'deny', reason: 'policy_error', policies: [], errors: a.errors });
  const pass = (approved) => {
    let byName = { allow: false, policies: [], errors: [] };
    let call; // the answer about the call itself, which those about its secrets follow
    for (const [i, q] of bundle.questions.entries()) {
      if (q.context.approved !== approved) continue;
      if (q.action.id === 'vault.expose' || q.action.id === 'vault.use') {
        if (!answers[i].allow) return { ...answers[i], byName: [] };
        call.policies = union(call.policies, answers[i].policies);
        continue;
      }
      if (q.action.id !== 'interpreter.run') {
        const permitted = q.context.interpreter_permitted ?? false;
        if (permitted !== byName.allow) throw new Unusable(`question ${i}: interpreter_permitted is not what was answered`);
        call = { ...answers[i], byName: answers[i].allow && byName.allow ? byName.policies : [] };
        const { network } = bundle.request.context;
        if (call.allow && ['tool.execute', 'skill.execute'].includes(q.action.id) && ['host', 'preflight'].includes(network) && !call.policies.some((id) => names(bundle.policies[id], network))) {
          return { allow: false, policies: [], errors: [], byName: [] }; // no permit names the host's network
        }
        if (!call.allow) return call;
        continue;
      }
      byName = answers[i];
      if (byName.errors.length > 0) return { ...byName, byName: [] };
    }
    const secrets = bundle.request.context.secrets ?? [];
    if (call && bundle.questions.filter((q) => q.action.id === 'vault.expose' && q.context.approved === approved).length !== secrets.length) {
      return { allow: false, policies: ['a secret was not asked about'], errors: [], byName: [] };
    }
    const uses = (bundle.request.context.egress_secrets ?? []).map((u) => about(u));
    const asked = bundle.questions.filter((q) => q.action.id === 'vault.use' && q.context.approved === approved).map((q) => [q.resource.id, q.context.use.host]);
    if (call && !same(uses, asked)) return { allow: false, policies: ['a use of a secret was not asked about'], errors: [], byName: [] };
    return call;
  };
  const plain = pass(false);
  if (plain === undefined) throw new Unusable('no question without approval');
  if (plain.errors.length > 0) return failed(plain);
  if (plain.allow) return { effect: 'allow', reason: 'permitted', policies: union(plain.policies, plain.byName), errors: [] };
  const approved = pass(true) ?? plain; // not asked: no policy looks at approval
  if (approved.errors.length > 0) return failed(approved);
  if (approved.allow) {
    const insist = approved.policies.every((id) => bundle.policies[id].includes('context.approved'));
    const permits = plain.policies.length === 0 || insist ? [approved.policies, approved.byName] : [];
    return { effect: 'needs_approval', reason: 'approval_required', policies: union(plain.policies, ...permits), errors: [] };
  }
  if (approved.policies.length > 0) return { effect: 'deny', reason: 'forbidden', policies: approved.policies, errors: [] };
  return { effect: 'deny', reason: 'not_permitted', policies: plain.policies, errors: [] };
}

function check(bundle) {
  if (bundle.version !== 1 || !Array.isArray(bundle.questions) || bundle.questions.length === 0) throw new Unusable('not a bundle of version 1');
  const wrong = [];
  const { request } = bundle;
  const answers = bundle.questions.map((q, i) => {
    const secret = q.action.id === 'vault.expose' && (request.context.secrets ?? []).includes(q.resource.id)
      || q.action.id === 'vault.use' && (request.context.egress_secrets ?? []).some((u) => same(about(u), [q.resource.id, q.context.use.host]));
    const of = secret ? { type: 'Palyra::Secret', id: q.resource.id }
      : q.action.id === 'interpreter.run' ? { type: 'Palyra::Executable', id: bundle.family } : { type: request.resource.type, id: request.resource.id };
    if (!same(q.principal, { type: request.principal.type, id: request.principal.id }) || !same(q.resource, of)
      || (q.context.capsule ?? '') !== (q.context.capsule === undefined ? '' : request.context.capsule_digest ?? '')
      || (!secret && q.action.id !== 'interpreter.run' && q.action.id !== request.action)) wrong.push(`question ${i} is not about the request`);
    const got = ask(bundle, q);
    const want = { allow: q.allow, policies: q.policies, errors: q.errors };
    if (!same(got, want)) wrong.push(`question ${i}: cedar ${JSON.stringify(got)}, palyra ${JSON.stringify(want)}`);
    return got;
  });
  const got = conclude(bundle, answers);
  if (!same(got, bundle.answer)) wrong.push(`answer: cedar ${JSON.stringify(got)}, palyra ${JSON.stringify(bundle.answer)}`);
  return wrong;
}

let agreed = 0;
let differ = 0;
for (const file of process.argv.slice(2)) {
  try {
    const wrong = check(JSON.parse(readFileSync(file, 'utf8')));
    if (wrong.length === 0) agreed++;
    else if (++differ <= 3) console.log(`${file}\n  ${wrong.join('\n  ')}`);
  } catch (err) {
    console.error(`bundle.mjs: ${file}: ${err.message}`);
    process.exit(2);
  }
}
console.log(`${agreed + differ} bundles, ${agreed} agreed, ${differ} differ`);
process.exit(differ === 0 ? 0 : 1);
