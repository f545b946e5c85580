// Repeats decisions with the official Cedar engine.
//
//   node check.mjs BATCHES.jsonl
//
// The first line holds the schema, the attributes and the groups of tools, every other
// one a policy set and requests with what Palyra decided (conformance/cedardiff writes
// them). Entities, contexts and the order of questions are made here, from
// docs/formats/policy.md.
//
// Exit status 0: all agree. 1: some differ, the first few are shown. 2: a policy,
// entity or request is not one that the engine accepts.
import { readFileSync } from 'node:fs';
import cedar from '@cedar-policy/cedar-wasm/nodejs';

function stop(what, errors) {
  console.error(`check.mjs: ${what}: ${JSON.stringify(errors)}`);
  process.exit(2);
}

const uid = (type, id) => ({ type, id });
const role = (name) => uid('Palyra::Role', name);
const roles = [
  { uid: role('owner'), attrs: {}, parents: [role('admin')] },
  { uid: role('admin'), attrs: {}, parents: [role('operator')] },
  { uid: role('operator'), attrs: {}, parents: [] },
];
// As in authz/access/permission.go; each holds what the ones before it hold.
const holds = {
  operator: ['session.read', 'session.write', 'run.start', 'run.cancel', 'approval.read', 'approval.resolve', 'policy.read', 'token.manage', 'config.read',
    'journal.read', 'artifact.read', 'layer.apply', 'memory.manage'],
  admin: ['policy.manage', 'member.manage', 'workspace.manage', 'vault.manage'],
  owner: ['trust.operate', 'backup.manage'],
};
const below = { owner: ['owner', 'admin', 'operator'], admin: ['admin', 'operator'], operator: ['operator'] };
const permissions = (p) => [...new Set((p.roles ?? []).flatMap((r) => below[r].flatMap((b) => holds[b])))]
  .filter((name) => p.scopes === undefined || p.scopes.includes(name)).map((name) => uid('Palyra::Permission', name));
const holdersUse = 'permit (principal, action == Palyra::Action::"permission.use", resource) when { principal in resource };';
const answers = (action) => action === 'approval.resolve' || action === 'approval.self';
const groupsOf = (resource) => resource.type !== 'Palyra::Tool' ? [] :
  Object.keys(groups).filter((g) => groups[g].includes(resource.id)).map((g) => uid('Palyra::ToolGroup', g));
const runsProgram = (action) => action === 'tool.execute' || action === 'skill.execute';

// contextType is the schema's type of context for an action.
const contextType = (action) => runsProgram(action) ? 'Call' : answers(action) ? 'Answer' : action === 'permission.use' ? 'Use' : 'Origin';

// derive has what is not simply what the request says: x is the request's context.
const member = (x, path) => path.split('.').reduce((at, name) => at?.[name], x);
const pathOf = (x) => x.executable?.path ?? '';
const slash = (x) => pathOf(x).lastIndexOf('/');
const ms = (ns) => Math.trunc((ns ?? 0) / 1e6);
const derive = {
  approved: (x, { approved }) => approved,
  interpreter_permitted: (x, { interpreterPermitted }) => interpreterPermitted,
  'executable.dir': (x) => slash(x) === 0 ? '/' : pathOf(x).slice(0, Math.max(slash(x), 0)),
  'executable.name': (x) => pathOf(x).slice(slash(x) + 1),
  'executable.kind': (x, { kind }) => kind,
  'executable.family': (x, { family }) => family,
  tool: (x, { request }) => runsProgram(request.action) ? request.resource.id : x.answer?.tool ?? '',
  args: (x) => [...(x.line_args ?? []), ...(x.args ?? [])],
  arg_count: (x) => (x.args ?? []).length,
  first_arg: (x) => x.args?.[0] ?? '',
  'limits.wall_ms': (x) => ms(x.limits?.wall),
  'limits.cpu_ms': (x) => ms(x.limits?.cpu),
  secrets_of_others: (x, { request }) => [...(x.secrets ?? []), ...uses(x).map((u) => u.ref)].filter((ref) => ref.startsWith('vault://principal:') && !ref.startsWith(`vault://principal:${request.principal.id}/`)),
  egress_hosts: (x) => (x.egress_hosts ?? []).map(bare),
  egress_unlisted: (x, { hosts }) => (x.egress_hosts ?? []).filter((host) => !Object.values(hosts ?? {}).flat().some((rule) => covers(rule, host))).map(bare),
  'inputs.untrusted': (x) => (x.inputs ?? []).some((origin) => origin === 'tool' || origin === 'web'),
  env_names: (x) => [...(x.env_names ?? []), ...(x.env ?? []).map((e) => e.slice(0, e.indexOf('=')))],
};
// bare, bounds and covers read docs/formats/egress.md, "Grammar": policies see hosts without their
// bounds, and a list covers no rule that is bounded less.
const bare = (rule) => rule.split(' ')[0];
const units = { '': 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, s: 1, m: 60, h: 3600, '/s': 1, '/m': 1 / 60 };
// Each bound is a list of numbers: how much at once, and, of a rate, how much in each second.
const bounds = (rule) => Object.fromEntries(rule.split(' ').slice(1).map((word) => {
  const [, name, n, unit] = /^(\w+):(\d+)(.*)$/.exec(word);
  return [name, name === 'rate' ? [Number(n), Number(n) * units[unit]] : [Number(n) * units[unit]]];
}));
const covers = (rule, host) => {
  const asked = bounds(host);
  if (!Object.entries(bounds(rule)).every(([name, most]) => asked[name]?.every((n, i) => n <= most[i]))) return false;
  return bare(rule) === bare(host) || rule.startsWith('*.') && bare(host).endsWith(bare(rule).slice(1));
};
// uses reads docs/formats/egress.md, "Uses of secrets".
const uses = (x) => (x.egress_secrets ?? []).map((text) => {
  const [, ref, place, methods, host, path, keep, revoke] = /^[^=]+=(\S+) (\S+) (?:([A-Z,-]+) )?([^\s/]+)(\/\S*)?(?: form:\S+)?( keep)?( revoke)?$/.exec(text);
  return { ref, host, place, methods: methods ? methods.split(',') : [], path: path ?? '', keep: keep !== undefined, revoke: revoke !== undefined };
});
for (const [name, none] of Object.entries({ host: '', place: '', methods: [], path: '', keep: false, revoke: false })) derive[`use.${name}`] = (x, { use }) => use?.[name] ?? none;
const none = { String: '', Bool: false, Long: 0, 'Set<String>': [] };

function contextOf(asked, approved, interpreterPermitted) {
  const out = {};
  for (const a of attributes) {
    if (!a.contexts.includes(contextType(asked.request.action))) continue;
    if (!derive[a.path] && !a.from) stop(`context.${a.path}`, 'the request does not have it, and check.mjs does not derive it');
    const value = derive[a.path] ? derive[a.path](asked.request.context, { ...asked, approved, interpreterPermitted })
      : member(asked.request.context, a.from) || a.absent || none[a.type];
    const [top, sub] = a.path.split('.');
    if (sub) (out[top] ??= {})[sub] = value;
    else out[top] = value;
  }
  return out;
}

function ask(asked, action, resource, approved, interpreterPermitted) {
  const p = asked.request.principal;
  const answer = cedar.statefulIsAuthorized({
    principal: uid(p.type, p.id), action: uid('Palyra::Action', action), resource,
    context: contextOf(asked, approved, interpreterPermitted),
    preparsedSchemaName: 'palyra', validateRequest: true, preparsedPolicySetId: 'set',
    entities: [...roles, { uid: uid(p.type, p.id), attrs: {}, parents: [...(p.roles ?? []).map(role), ...permissions(p)] }, { uid: resource, attrs: {}, parents: groupsOf(resource) }],
  });
  if (answer.type !== 'success') stop(`${action} of ${JSON.stringify(asked.request)}`, answer.errors);
  const { decision, diagnostics } = answer.response;
  const errors = diagnostics.errors.map((e) => e.policyId).sort();
  return { allow: decision === 'allow' && errors.length === 0, ids: [...diagnostics.reason], errors, interpreters: [] };
}

// A permit of a call in the host's network has to name that.
const hostNetworks = ['host', 'preflight'];
const names = (text, network) => new RegExp(`context\\.network == "${network}"|"${network}" == context\\.network|\\[[^\\]]*"${network}"[^\\]]*\\]\\.contains\\(context\\.network\\)`).test(text);

// question is step 2 and 3 of "How a request is decided".
function question(asked, set, approved) {
  const { request, kind, family } = asked;
  let permitted = { allow: false, ids: [] };
  if (runsProgram(request.action) && kind !== 'other' && set.reads('context.interpreter_permitted')) {
    permitted = ask(asked, 'interpreter.run', uid('Palyra::Executable', family), approved, false);
    if (permitted.errors.length > 0) return permitted;
  }
  const resource = uid(request.resource.type, request.resource.id);
  const answer = ask(asked, request.action, resource, approved, permitted.allow);
  const { network } = request.context;
  if (answer.allow && runsProgram(request.action) && hostNetworks.includes(network) && !answer.ids.some((id) => names(set.policies[id], network))) {
    return { allow: false, ids: [], errors: [], interpreters: [] };
  }
  if (answer.allow && permitted.allow) answer.interpreters = permitted.ids;
  for (const ref of answer.allow ? request.context.secrets ?? [] : []) {
    const exposed = ask(asked, 'vault.expose', uid('Palyra::Secret', ref), approved, permitted.allow);
    if (!exposed.allow) return exposed;
    answer.ids.push(...exposed.ids);
  }
  for (const use of answer.allow ? uses(request.context) : []) {
    const used = ask({ ...asked, use }, 'vault.use', uid('Palyra::Secret', use.ref), approved, permitted.allow);
    if (!used.allow) return used;
    answer.ids.push(...used.ids);
  }
  return answer;
}

function decide(asked, set) {
  const failed = (errors) => ({ effect: 'deny', reason: 'policy_error', policies: [], errors });
  const decided = (effect, reason, policies) => ({ effect, reason, policies: [...new Set(policies)].sort(), errors: [] });
  const plain = question(asked, set, false);
  if (plain.errors.length > 0) return failed(plain.errors);
  if (plain.allow) return decided('allow', 'permitted', [...plain.ids, ...plain.interpreters]);
  const approved = question(asked, set, true);
  if (approved.errors.length > 0) return failed(approved.errors);
  if (approved.allow) {
    const insist = approved.ids.every((id) => set.policies[id].includes('context.approved'));
    const permits = plain.ids.length === 0 || insist ? [...approved.ids, ...approved.interpreters] : [];
    return decided('needs_approval', 'approval_required', [...plain.ids, ...permits]);
  }
  if (approved.ids.length > 0) return decided('deny', 'forbidden', approved.ids);
  return decided('deny', 'not_permitted', plain.ids);
}

const lines = readFileSync(process.argv[2], 'utf8').trimEnd().split('\n').map((l) => JSON.parse(l));
const { attributes, groups } = lines[0]; // the rows of authz/policy, and the table of tools
const schema = cedar.preparseSchema('palyra', lines[0].schema);
if (schema.type !== 'success') stop('schema', schema.errors);
let requests = 0;
let agreed = 0;
for (const { policies, asked } of lines.slice(1)) {
  // A set that permits permission.use by no policy that names it has one more.
  if (!Object.values(policies).some((t) => /\bpermit \(/.test(t) && /action[^,]*"permission\.use"/.test(t))) policies.holders_use_permissions = holdersUse;
  const parsed = cedar.preparsePolicySet('set', { staticPolicies: policies });
  if (parsed.type !== 'success') stop('policies', parsed.errors);
  const texts = Object.values(policies);
  const set = { policies, reads: (what) => texts.some((t) => t.includes(what)) };
  for (const a of asked) {
    const want = decide(a, set);
    const got = { effect: a.effect, reason: a.reason, policies: a.policies ?? [], errors: a.errors ?? [] };
    requests++;
    if (JSON.stringify(got) === JSON.stringify(want)) {
      agreed++;
    } else if (requests - agreed <= 3) {
      console.log(`palyra ${JSON.stringify(got)}\ncedar  ${JSON.stringify(want)}\n       ${JSON.stringify(a.request)}`);
      for (const id of new Set([...got.policies, ...want.policies, ...got.errors, ...want.errors])) console.log(`       ${policies[id]}`);
    }
  }
}
console.log(`${requests} requests, ${agreed} agreed, ${requests - agreed} differ`);
process.exit(agreed === requests ? 0 : 1);
