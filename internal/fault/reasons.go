package fault

import (
	"slices"
	"strings"
)

// Reason is one row of the table of reason codes: what a program may act on,
// below the kind. Detail that only explains belongs into an error's text.
type Reason struct {
	Code  string   // as in JSON; a family's ends in "_", and one of Names follows
	Kinds []Kind   // those of the errors that have it; none: it's no error's
	Names []string // of a family
	Says  string   // one sentence; "" where the code says it
	Do    string   // what a person can do; "" where the kind's hint says all there is
}

// Vocabulary is a part of the table.
type Vocabulary struct {
	Name    string
	Says    string
	Reasons []Reason
}

// Reasons returns the table. It is read-only.
func Reasons() []Vocabulary { return vocabularies[:] }

// Do returns what a person can do about a reason code, "" if the table doesn't say.
func Do(code string) string { return reasonOf(code).Do }

// Says returns what a reason code means, "" if the table doesn't say.
func Says(code string) string { return reasonOf(code).Says }

// Usual returns the first of the kinds that errors with a code have, which is the usual one.
func Usual(code string) Kind {
	if r := reasonOf(code); len(r.Kinds) > 0 {
		return r.Kinds[0]
	}
	return Internal
}

func reasonOf(code string) *Reason {
	for i := range vocabularies {
		for j := range vocabularies[i].Reasons {
			if r := &vocabularies[i].Reasons[j]; r.is(code) {
				return r
			}
		}
	}
	return new(Reason)
}

// is reports whether code is r's, or one of its family.
func (r *Reason) is(code string) bool {
	if name, ok := strings.CutPrefix(code, r.Code); ok && r.Names != nil {
		return slices.Contains(r.Names, name)
	}
	return code == r.Code
}

// vocabularies is the one place where a reason code is declared: a test of
// conformance/arch compares it with the sources, and prints it as
// docs/formats/reasons.md. Codes are for outsiders. Our own code asks for kinds,
// types and sentinels, those of Code among them.
var vocabularies = [...]Vocabulary{
	{"The request", "Mend the request; sending it again changes nothing.", []Reason{
		{Code: "bad_command", Kinds: []Kind{Usage},
			Says: "No such flag, operand or command."},
		{Code: "invalid_input", Kinds: []Kind{Usage, Denied},
			Says: "A member, parameter or variable is unknown, missing, malformed, of another type or refused; or a patch isn't a unified diff of plain files."},
		{Code: "json_syntax", Kinds: []Kind{Usage},
			Says: "Not one JSON value in UTF-8, a member twice, too deep, or a number beyond a double."},
		{Code: "json_too_large", Kinds: []Kind{Usage},
			Says: "A body or a JSON text is."},
		{Code: "too_large", Kinds: []Kind{Usage, Refused, Unavailable, NotExec, BadState},
			Says: "Beyond a fixed bound."},
		{Code: "idempotency_key_reused", Kinds: []Kind{Usage}},
		{Code: "egress_denied", Kinds: []Kind{Refused},
			Says: "A redirect leads to a host that the call doesn't name, or a host looked up before a call may not be reached.", Do: "name it in egress_hosts"},
		{Code: "redirect_refused", Kinds: []Kind{Refused},
			Says: "A redirect is one too many, leads from https to http, or wants a body sent again."},
		{Code: "content_type_refused", Kinds: []Kind{Refused},
			Says: "The host answers with a type or an encoding that the call doesn't take.", Do: "name the type in allowed_content_types"},
	}},
	{"Programs, files and ids", "", []Reason{
		{Code: "not_found", Kinds: []Kind{NotFound, Usage},
			Says: "No such thing, or it isn't for this caller. The text names it."},
		{Code: "no_such_session", Kinds: []Kind{NotFound, Usage},
			Says: "Or it has ended. Go on in another one."},
		{Code: "question_not_recorded", Kinds: []Kind{Unsupported},
			Says: "Not in full."},
		{Code: "exists", Kinds: []Kind{Busy, BadState}},
		{Code: "outside_workspace", Kinds: []Kind{Usage, NotExec, Refused},
			Do: "name the file itself; a link in the workspace may not lead out of it"},
		{Code: "permission_denied", Kinds: []Kind{Denied, Refused, BadState},
			Says: "The operating system, the role, or that the asker lacks it itself, forbids it."},
		{Code: "read_only", Kinds: []Kind{Usage, Refused, BadState},
			Says: "A file system, or a workspace as the operator declared it."},
		{Code: "bad_file", Kinds: []Kind{Usage, NotFound, BadState},
			Says: "A file that the caller named can't be used, or another type of file is wanted there.",
			Do: "name a regular file that this user may read, or one in an existing folder that this user " +
				"may write to: no link, FIFO, socket or device"},
		{Code: "program_not_found", Kinds: []Kind{NotFound},
			Do: "give the path of the program; relative ones begin in the workspace, or else in the " +
				"current directory"},
		{Code: "program_not_executable", Kinds: []Kind{NotExec},
			Says: "It, its interpreter or its loader can't be read or doesn't run here, is another's to replace, or the layer has a version of its own.",
			Do: "CMD must be an ELF binary or a #! script: a regular file that this user may read " +
				"and execute"},
		{Code: "workspace_unusable", Kinds: []Kind{Usage, Refused},
			Says: "Not an existing folder of this user, or it would show keys, the host or another user's files.",
			Do: "name an existing folder, with the agent's files and nothing else: --workspace DIR, " +
				"or DIR:ro for read-only"},
		{Code: "apply_unfinished", Kinds: []Kind{Busy},
			Says: "Bringing the layer's changes to the workspace was interrupted."},
		{Code: "cannot_apply", Kinds: []Kind{Refused},
			Says: "The layer has a change that apply leaves to a person: a special or unreadable file, a folder that goes with git's own files, or refs without their objects."},
	}},
	{"The caller", "", []Reason{
		{Code: "unauthenticated", Kinds: []Kind{Denied}},
		{Code: "token_expired", Kinds: []Kind{Denied}},
		{Code: "token_revoked", Kinds: []Kind{Denied},
			Says: "The token was revoked or replaced."},
		{Code: "scope_missing", Kinds: []Kind{Denied}},
		{Code: "peer_certificate_invalid", Kinds: []Kind{Denied},
			Says: "The certificate of a hub or a device isn't one of the trusted authority for that.",
			Do:   "compare the hub's address; pair the device again"},
		{Code: "peer_certificate_expired", Kinds: []Kind{Denied, BadState},
			Says: "Certificates live for a day. A device that was away for longer is paired again.",
			Do:   "compare the clocks of both sides"},
		{Code: "not_a_member", Kinds: []Kind{Denied}},
		{Code: "feature_off", Kinds: []Kind{Denied}},
		{Code: "pairing_over", Kinds: []Kind{Denied, Unavailable},
			Says: "The code is unknown, used, cancelled or too old, the digits differ, or the hub made no certificate."},
		{Code: "pairing_proof", Kinds: []Kind{Integrity},
			Says: "A message of a pairing isn't what the protocol, the code or the key wants."},
	}},
	{"Decision and approval", "", []Reason{
		{Code: "policy_denied", Kinds: []Kind{Denied}},
		{Code: "policy_changed", Kinds: []Kind{Busy, Denied, Refused},
			Says: "Since the decision, or while it was read.",
			Do:   "somebody writes to the policy directory; try again when that is done"},
		{Code: "certificate_missing", Kinds: []Kind{Denied},
			Says: "None of this boot proves the tier, or it was refuted.",
			Do:   "palyra sandbox certify"},
		{Code: "no_approver", Kinds: []Kind{Denied, Usage, BadState},
			Says: "No one could approve, or the terminal has no room for the question."},
		{Code: "self_approval", Kinds: []Kind{Denied},
			Says: "The caller asked for the call, and their own yes doesn't count.",
			Do: "another principal with the permission to approve must answer; where there is none, " +
				"palyra config explain approvals.allow_self"},
		{Code: "not_approved", Kinds: []Kind{NotApproved},
			Says: "No yes that holds: none, one to another capsule, one that was used, or whose grant ended."},
		{Code: "approval_expired", Kinds: []Kind{NotApproved}},
		{Code: "version_conflict", Kinds: []Kind{Busy},
			Do: "look at what it is now and decide anew"},
	}},
	{"Not now", "The same request may succeed later, or with less.", []Reason{
		{Code: "run_ended", Kinds: []Kind{Usage}},
		{Code: "queue_full", Kinds: []Kind{Busy, Unavailable}},
		{Code: "too_many", Kinds: []Kind{Busy, Unavailable},
			Says: "The principal has, or sends, too many of what the text names."},
		{Code: "budget", Kinds: []Kind{Unavailable},
			Says: "Requests hold all there is of a resource, or the principal's part; the text names it."},
		{Code: "quota", Kinds: []Kind{Unavailable},
			Says: "The principal has left behind as much as it may."},
		{Code: "disk_low", Kinds: []Kind{Unavailable},
			Says: "Less space is free than is kept free."},
		{Code: "disk_full", Kinds: []Kind{Unavailable}},
		{Code: "resource_exhausted", Kinds: []Kind{Unavailable},
			Says: "The host is out of descriptors, memory or processes."},
		{Code: "locked", Kinds: []Kind{Busy},
			Says: "Another process, call or request holds it."},
		{Code: "changed", Kinds: []Kind{Busy, Usage, Unavailable, Refused, Integrity},
			Says: "It isn't what it was when it was looked at, sealed, decided or expected; a patch fits nowhere in it, or in several places.",
			Do:   "look at what it is now and try again"},
		{Code: "safe_mode", Kinds: []Kind{Unavailable},
			Says: "After failed starts the daemon only reads."},
		{Code: "stopped", Kinds: []Kind{Denied, Canceled},
			Says: "By the emergency stop."},
		{Code: "not_ready", Kinds: []Kind{Unavailable, Busy, BadState},
			Says: "The daemon begins or ends, or a part of it that is asked for isn't there yet."},
		{Code: "daemon_unreachable", Kinds: []Kind{Unavailable}},
		{Code: "connection_lost", Kinds: []Kind{Unavailable}},
		{Code: "timeout", Kinds: []Kind{Timeout}},
		{Code: "canceled", Kinds: []Kind{Canceled}},
		{Code: "io_error", Kinds: []Kind{Unavailable}},
	}},
	{"State and configuration", "", []Reason{
		{Code: "unsafe_file", Kinds: []Kind{BadState},
			Says: "Others can change or read it."},
		{Code: "state_missing", Kinds: []Kind{BadState}},
		{Code: "state_io", Kinds: []Kind{BadState},
			Says: "The state directory can't be used.",
			Do:   "look at what is there: ls -ld; the state is a directory of its own: --state DIR"},
		{Code: "schema_too_new", Kinds: []Kind{BadState}},
		{Code: "key_corrupt", Kinds: []Kind{Integrity, BadState},
			Says: "Or another state directory's.",
			Do: "restore keys/ and trust/ from a backup, or begin anew in another directory: " +
				"--state DIR"},
		{Code: "keys_locked", Kinds: []Kind{Denied},
			Says: "Keys, vault or backup are sealed, and no recipient has the identity or passphrase."},
		{Code: "trust_corrupt", Kinds: []Kind{Integrity},
			Do: "fetch att.pub and log.vkey again from whoever runs that Palyra: --trust DIR"},
		{Code: "store_corrupt", Kinds: []Kind{Integrity},
			Says: "The store, a backup, an artifact, a layer or a sealed value isn't what was written."},
		{Code: "rolled_back", Kinds: []Kind{Integrity},
			Says: "The vault, or members and tokens, are older than the journal says."},
		{Code: "keyring_unavailable", Kinds: []Kind{Unavailable},
			Says: "The keyring that has the vault's identity is locked, isn't there, or doesn't work."},
		{Code: "connection_not_private", Kinds: []Kind{Usage},
			Says: "Values of secrets travel over the unix socket and connections of paired devices alone.",
			Do:   "use palyrad's unix socket, or pair this device: palyra help pair"},
		{Code: "secret_expired", Kinds: []Kind{Refused}},
		{Code: "secret_in_call", Kinds: []Kind{Usage},
			Says: "Arguments, variables or input have a secret's value, which would stand in records.",
			Do:   "let the program read it in a file: --secret NAME=vault://SCOPE/KEY, or secrets of process.run"},
		{Code: "placeholder_leaked", Kinds: []Kind{Refused},
			Says: "The placeholder of a secret was seen where it doesn't belong, and the call ended. The secret went nowhere."},
		{Code: "bad_answer", Kinds: []Kind{Integrity},
			Says: "The answer of the daemon, or of a host that was asked, is malformed or not its own."},
	}},
	{"The host and the cell", "", []Reason{
		{Code: "platform_unsupported", Kinds: []Kind{Unsupported}},
		{Code: "no_operation", Kinds: []Kind{Unsupported},
			Says: "This daemon lacks the operation."},
		{Code: "overlay_unavailable", Kinds: []Kind{Refused},
			Says: "No overlayfs of Linux 6.15, or not over these file systems."},
		{Code: "tier_unavailable", Kinds: []Kind{Refused}},
		{Code: "userns_unavailable", Kinds: []Kind{Refused}},
		{Code: "cgroup_unavailable", Kinds: []Kind{Refused}},
		{Code: "landlock_unavailable", Kinds: []Kind{Refused},
			Says: "The kernel has no Landlock, or takes no rules."},
		{Code: "seccomp_unavailable", Kinds: []Kind{Refused},
			Says: "No filter for this architecture."},
		{Code: "mount_namespace", Kinds: []Kind{Refused}},
		{Code: "network_namespace", Kinds: []Kind{Refused},
			Says: "It can't be made or entered, or isn't empty."},
		{Code: "idmapped_mount", Kinds: []Kind{Refused},
			Says: "The workspace's file system has none."},
		{Code: "proc_unavailable", Kinds: []Kind{Refused, Unavailable}},
		{Code: "memfd_exec_forbidden", Kinds: []Kind{Refused}},
		{Code: "cell_start", Kinds: []Kind{Refused, Unavailable, Internal},
			Says: "The text names the step."},
		{Code: "gate_", Kinds: []Kind{Refused},
			Names: []string{"capabilities", "cgroup", "cwd", "descriptors", "fence", "identity", "landlock", "limits", "mounts", "namespaces", "nested_userns", "no_new_privs", "seccomp", "secrets", "securebits", "session", "terminal", "variables"},
			Says:  "At the gate the process isn't as ordered."},
		{Code: "confine_not_in_force", Kinds: []Kind{Refused},
			Says: "palyrad couldn't confine itself."},
		{Code: "helper_unusable", Kinds: []Kind{Refused, Unavailable},
			Says: "A program of ours is missing, another version, replaceable, built with holes for tests, or has ended."},
		{Code: "egress_lost", Kinds: []Kind{Refused, Unavailable},
			Says: "palyra-egress isn't there, or ended with the call."},
		{Code: "grant_invalid", Kinds: []Kind{Refused},
			Says: "Not sealed by this authority for this, used, or expired."},
		{Code: "operand_unpinnable", Kinds: []Kind{Refused, Usage},
			Says: "It can't be sealed or watched here."},
		{Code: "operand_moved", Kinds: []Kind{Integrity},
			Says: "It or a folder above was replaced during the run, or wasn't watched."},
		{Code: "server_not_accepted", Kinds: []Kind{Usage},
			Says: "No one has accepted the MCP server's tools.", Do: "palyra mcp accept NAME shows and accepts them"},
		{Code: "tool_changed", Kinds: []Kind{Refused, Busy},
			Says: "The MCP server defines the tool otherwise than it was accepted.", Do: "palyra mcp accept NAME shows what changed"},
		{Code: "server_died", Kinds: []Kind{Unavailable, Refused},
			Says: "The MCP server ended, wasn't started, or isn't there for this caller."},
		{Code: "server_protocol", Kinds: []Kind{Unavailable, Refused},
			Says: "The MCP server sent what isn't the protocol, or more than it may, and was ended."},
		{Code: "cell_died", Kinds: []Kind{Internal, Refused, Unavailable},
			Says: "A call under way has an unknown outcome, or an end that went unobserved."},
		{Code: "cell_protocol", Kinds: []Kind{Internal}},
		{Code: "internal", Kinds: []Kind{Internal, Refused},
			Says: "A defect of Palyra, or an unknown error."},
	}},
	{"Findings about a receipt or a journal", "", []Reason{
		{Code: "receipt_syntax", Kinds: []Kind{Integrity},
			Says: "Not JSON.",
			Do: "FILE must be a receipt as palyra exec --receipt writes it; palyra journal show " +
				"lists what was journaled here"},
		{Code: "receipt_form", Kinds: []Kind{Integrity},
			Says: "Another form or version."},
		{Code: "receipt_entries", Kinds: []Kind{Integrity},
			Says: "Not one log entry."},
		{Code: "receipt_key", Kinds: []Kind{Integrity},
			Says: "Not a trusted key's, or not its place in the log.",
			Do:   "fetch the trust directory again from whoever runs that Palyra: --trust DIR"},
		{Code: "receipt_log", Kinds: []Kind{Integrity},
			Says: "The log entry is another's."},
		{Code: "receipt_envelope", Kinds: []Kind{Integrity},
			Says: "Not a DSSE envelope."},
		{Code: "receipt_signature", Kinds: []Kind{Integrity},
			Says: "Not the trusted key's."},
		{Code: "receipt_leaf", Kinds: []Kind{Integrity},
			Says: "Not the envelope's."},
		{Code: "receipt_statement", Kinds: []Kind{Integrity},
			Says: "Not a statement, or of the wrong kind."},
		{Code: "receipt_checkpoint", Kinds: []Kind{Integrity},
			Says: "Not signed by the log, or of another tree."},
		{Code: "receipt_inclusion", Kinds: []Kind{Integrity},
			Says: "The proof doesn't lead to the root."},
		{Code: "receipt_audit", Kinds: []Kind{Integrity},
			Says: "Log entries contradict each other."},
		{Code: "journal_checkpoint_corrupt", Kinds: []Kind{Integrity}},
		{Code: "journal_checkpoint_missing", Kinds: []Kind{Integrity}},
		{Code: "journal_checkpoint_rolled_back", Kinds: []Kind{Integrity},
			Says: "Older than a durable one."},
		{Code: "journal_checkpoint_split", Kinds: []Kind{Integrity},
			Says: "Another root than the log's."},
		{Code: "journal_content_corrupt", Kinds: []Kind{Integrity},
			Says: "Not what was written."},
		{Code: "journal_content_missing", Kinds: []Kind{Integrity}},
		{Code: "journal_entries_missing", Kinds: []Kind{Integrity}},
		{Code: "journal_rolled_back", Kinds: []Kind{Integrity},
			Says: "Older than what was published or seen."},
		{Code: "journal_tile_corrupt", Kinds: []Kind{Integrity}},
		{Code: "journal_tile_missing", Kinds: []Kind{Integrity}},
		{Code: "journal_tree_mismatch", Kinds: []Kind{Integrity},
			Says: "The entries don't make the signed tree."},
		{Code: "journal_wal_corrupt", Kinds: []Kind{Integrity},
			Says: "Not what was written."},
		{Code: "journal_wal_missing", Kinds: []Kind{Integrity}},
		{Code: "journal_wal_replaced", Kinds: []Kind{Integrity},
			Says: "Replaced without its lock."},
	}},
	{"Configuration and policies", "`palyra config check`, `palyra policy check` and `lint` list findings with line and text.", []Reason{
		{Code: "config_invalid", Kinds: []Kind{BadState},
			Do: "palyra config schema lists the keys, palyra config show those in force"},
		{Code: "policy_invalid", Kinds: []Kind{BadState, Usage},
			Says: "A rule of [policy.md](policy.md#what-must-hold).",
			Do: "palyra policy check DIR loads a directory exactly as it is used, and says what is " +
				"wrong with it"},
		{Code: "policy_never_matches", Kinds: []Kind{BadState}},
		{Code: "policy_test_failed", Kinds: []Kind{BadState},
			Do: "palyra policy test DIR lists the tests; mend the policy, or the test that expects " +
				"otherwise"},
		{Code: "policy_untested", Kinds: []Kind{BadState},
			Says: "A forbid that no policy test shows firing."},
	}},
	{"How policy decided", "The `reason` of a decision, which replay compares.", []Reason{
		{Code: "permitted"},
		{Code: "approval_required",
			Says: "A permit applies after a yes."},
		{Code: "forbidden", Kinds: []Kind{Denied}},
		{Code: "not_permitted", Kinds: []Kind{Denied},
			Says: "No permit applies."},
		{Code: "policy_error", Kinds: []Kind{Denied}},
		{Code: "bad_request", Kinds: []Kind{Denied},
			Says: "The schema doesn't know such a request."},
	}},
	{"How calls, approvals and runs end", "On tapes, in receipts and in ended runs.", []Reason{
		{Code: "approved",
			Says: "By a person or a standing grant."},
		{Code: "denied", Kinds: []Kind{NotApproved}},
		{Code: "expired", Kinds: []Kind{NotApproved}},
		{Code: "withdrawn", Kinds: []Kind{NotApproved}},
		{Code: "exit_status",
			Says: "Another than 0."},
		{Code: "wall", Kinds: []Kind{Timeout},
			Says: "The call's is used up."},
		{Code: "cpu", Kinds: []Kind{Unavailable},
			Says: "The signal for the call's limit ended the program."},
		{Code: "memory", Kinds: []Kind{Unavailable},
			Says: "The call's is used up."},
		{Code: "disk", Kinds: []Kind{Unavailable},
			Says: "The call's is used up."},
		{Code: "uncounted", Kinds: []Kind{Unavailable},
			Says: "The program kept palyra from counting its memory or files."},
		{Code: "killed", Kinds: []Kind{Unavailable}},
		{Code: "crashed", Kinds: []Kind{Internal},
			Says: "palyra died with the call."},
		{Code: "cancelled"},
		{Code: "interrupted", Kinds: []Kind{Canceled},
			Says: "The daemon stopped or died."},
		{Code: "caller_gone"},
		{Code: "session_ended"},
		{Code: "step_failed", Kinds: []Kind{Usage}},
		{Code: "steered",
			Says: "Of a step: the agent's caller interrupted it with other words."},
		{Code: "max_turns",
			Says: "The model was asked as often as it may be.", Do: "go on in its session, or begin with more: palyra agent run --turns"},
		{Code: "provider_error",
			Says: "The model's provider gave no answer; the run's answer says why.", Do: "palyra models ls says whether the model can be asked"},
		{Code: "context_budget_exhausted",
			Says: "What the model must be told doesn't fit into its window."},
		{Code: "incomplete_final_answer",
			Says: "The model's answer was empty, cut off, or ended with a call as text, twice without a call between."},
		{Code: "repeated_tool_failure",
			Says: "The model made the same call three times, and it failed each time."},
		{Code: "budget_calls",
			Says: "The run's is used up.", Do: "begin another with more: palyra config explain budget.calls, and --max-calls"},
		{Code: "budget_wall",
			Says: "The run's is used up.", Do: "begin another with more: palyra config explain budget.wall, and --max-wall"},
		{Code: "budget_tokens",
			Says: "The model has taken as many tokens as the run, its session or its principal's day may; the text says which.", Do: "palyra agent usage; palyra config explain agent.tokens"},
		{Code: "budget_cost",
			Says: "The model's turns have cost what those of the run, its session or its principal's day may.", Do: "palyra agent usage; palyra config explain agent.cost"},
		{Code: "budget_bytes",
			Says: "The run's is used up.", Do: "begin another with more: palyra config explain budget.bytes"},
	}},
}
