package front

import (
	"errors"
	"io/fs"
	"syscall"

	"palyra/internal/fault"
)

// Hint returns what a person can do about err: the hint that it carries, else
// the one for its reason code, else for the error of the operating system in it,
// else for its kind. It is empty for nil alone. Whoever makes an error gives it a
// hint where the hint depends on the case; what is always the same stands here.
func Hint(err error) string {
	if err == nil {
		return ""
	}
	if h := fault.HintOf(err); h != "" {
		return h
	}
	if h := ReasonHint(fault.ReasonOf(err)); h != "" {
		return h
	}
	for _, s := range system {
		if errors.Is(err, s.err) {
			return s.hint
		}
	}
	if k := fault.KindOf(err); int(k) < len(kinds) {
		return kinds[k]
	}
	return kinds[fault.Internal]
}

// ReasonHint returns the hint of a reason code, or "" if it has none of its own.
func ReasonHint(reason string) string {
	for i := range reasons {
		if reasons[i].reason == reason {
			return reasons[i].hint
		}
	}
	return ""
}

const (
	hintOtherProgram   = "CMD must be an ELF binary or a #! script: a regular file that this user may read and execute"
	hintOtherWorkspace = "name an existing folder, with the agent's files and nothing else: --workspace DIR, or DIR:ro for read-only"
	hintKeys           = "restore keys/ and trust/ from a backup, or begin anew in another directory: --state DIR"
	hintTrust          = "fetch att.pub and log.vkey again from whoever runs that Palyra: --trust DIR"
	hintReceipt        = "FILE must be a receipt as palyra exec --receipt writes it; palyra journal show lists what was journaled here"
	hintJournal        = "stop using this journal, keep a copy as evidence, and compare it with a backup: palyra journal verify"
	hintPolicies       = "palyra policy check DIR loads a directory exactly as it is used, and says what is wrong with it"
	hintPolicyDir      = "name an existing directory with *.cedar files, or leave it out for the built-in set"
	hintMembers        = "palyra members ls lists principals, roles and versions"
)

// reasons has the hints of reason codes that always have the same. A test looks
// each up in the source, so that none outlives its error. It is no map because a
// map is made at each start, also of a palyra exec that meets no error.
var reasons = [...]struct{ reason, hint string }{
	// Programs and workspaces.
	{"program_not_found", "give the path of the program; relative ones begin in the workspace, or else in the current directory"},
	{"program_is_directory", hintOtherProgram},
	{"program_not_regular", hintOtherProgram},
	{"program_empty", hintOtherProgram},
	{"program_format", hintOtherProgram},
	{"program_not_executable", hintOtherProgram + "; chmod +x makes it one"},
	{"program_unreadable", "what cannot be read cannot be hashed and does not run: chmod +r, or run as a user who may read it"},
	{"program_unreachable", "look at the owner and mode of the file and of each folder above it: namei -l PATH"},
	{"program_link", "name the file that the link means, not a link that leads to itself or through /proc"},
	{"program_outside_workspace", "name the file itself; a link in the workspace may not lead out of it"},
	{"program_lookup", "look at the path: namei -l PATH"},
	{"program_too_large", "at most 512 MiB run; name a smaller program, or one below /usr that starts it"},
	{"program_changed", "a system update may be running; try again"},
	{"no_program", "name what is to run behind --"},
	{"script_line", "the first line must be #! and the absolute path of an interpreter"},
	{"script_interpreter", "install the interpreter that the first line of the script names, or name another"},
	{"script_interpreter_is_script", "let the first line of the script name a binary"},
	{"script_too_deep", "let the first line of the script name a binary"},
	{"workspace_missing", hintOtherWorkspace},
	{"workspace_not_directory", hintOtherWorkspace},
	{"workspace_is_root", hintOtherWorkspace},
	{"workspace_unreachable", "look at the owner and mode of the folder and of each above it: namei -l DIR"},
	{"workspace_in_state", "the program would see Palyra's keys: " + hintOtherWorkspace},
	{"workspace_holds_state", "the program would see Palyra's keys: name a folder without the state directory, or move that: --state DIR"},
	{"unknown_tool", "palyra tools ls lists the tools"},
	{"bad_receipt_file", "name a file in an existing folder that this user may write to; one that is there is replaced"},
	// State, keys, receipts, journal.
	{"key_corrupt", hintKeys},
	{"origin_mismatch", hintKeys},
	{"trust_mismatch", "trust/ does not belong to keys/: restore both from one backup, or begin anew in another directory: --state DIR"},
	{"trust_corrupt", hintTrust},
	{"state_not_absolute", "give the absolute path of the state directory"},
	{"wrong_type", "name the thing itself, a regular file or a directory: no link, FIFO, socket or device"},
	{"state_io", "look at what is there: ls -ld; the state is a directory of its own: --state DIR"},
	{"receipt_unreadable", hintReceipt},
	{"receipt_syntax", hintReceipt},
	{"no_journal", "the first call makes the journal; name the directory where it was made: --state DIR"},
	// Policies.
	{"policy_missing", hintPolicyDir}, // of palyra-ctl, which reads a directory for palyrad
	{"policy_unreadable", hintPolicyDir},
	{"policy_changed", "somebody writes to the policy directory; try again when that is done"},
	{"policy_unexpected_file", "move the file out of the directory, or give it the name that it should have; a leading dot hides it"},
	{"policy_syntax", hintPolicies},
	{"policy_invalid", hintPolicies},
	{"policy_test_failed", "palyra policy test DIR lists the tests; mend the policy, or the test that expects otherwise"},
	{"diff_unreadable", "name a file with a unified diff, or - for standard input"},
	{"no_such_decision", "a denial names its decision; so does palyra journal show INDEX --json"},
	{"bad_decision_id", "a denial names its decision: eight hexadecimal digits of it or more"},
	// palyrad, and what it keeps.
	{"no_such_session", "palyra sessions ls lists them"},
	{"no_such_run", "palyra runs ls lists them"},
	{"no_such_approval", "palyra approvals ls --state all lists them"},
	{"no_such_grant", "palyra approvals grants lists them"},
	{"no_such_artifact", "palyra runs show RUN names the artifacts of a run"},
	{"no_such_token", "palyra token ls lists them"},
	{"no_such_member", hintMembers},
	{"no_such_entry", "palyra journal ls lists them"},
	{"bad_id", "an id is what the command that lists such things prints, as a whole: ses_..., run_..., apr_..., tok_..."},
	{"bad_digest", "a digest is sha256: and 64 hexadecimal digits; palyra runs show RUN prints those of a run"},
	{"bad_principal", `principals look like "uid:1000", "user:alice" or "service:ci"`},
	{"bad_role", "roles are operator, admin and owner"},
	{"version_conflict", "look at what it is now and decide anew"},
	{"config_unknown_key", "palyra config schema lists the keys, palyra config show those in force"},
	{"config_unreadable", "name a regular file that this user may read and nobody else may write"},
	{"token_file", "name a file with one token and nothing else, that only you may read: palyra token create makes one"},
	{"two_targets", "leave one of them out"},
	{"token_without_url", "add --url, or leave --token-file out"},
	{"bad_identity", "name the file that palyra backup keygen or age-keygen wrote, whose public key the backup was made for"},
	{"backup_wrong_key", "name the identity whose public key the backup was made for: --identity FILE"},
	{"not_empty", "name a directory that is empty, or one that does not exist in a folder that does"},
	{"bad_file", "look at the path; a file is written to an existing folder that this user may write to"},
	{"unknown_command", "palyra help lists the commands"},
	{"certificate_missing", "palyra sandbox certify"},
}

// system has hints for errors of the operating system, for errors whose maker
// knew no more than that.
var system = []struct {
	err  error
	hint string
}{
	{syscall.ENOSPC, "free some space and try again"},
	{syscall.EROFS, "choose a place on a file system that can be written to"},
	{syscall.EMFILE, "raise the limit of open files: ulimit -n"},
	{syscall.ENFILE, "the host is out of open files; try again when less runs"},
	{syscall.ENOMEM, "free some memory and try again"},
	{syscall.EPIPE, "whoever was to read the output has left"},
	{syscall.EIO, "look at the kernel's log for errors of the disk"},
	{syscall.ENOTDIR, "a part of the path is not a directory: namei -l PATH"},
	{syscall.EISDIR, "name a file, not a directory"},
	{syscall.ELOOP, "name the file itself, not a link"},
	{fs.ErrPermission, "look at the owner and mode of it and of each folder above: namei -l PATH; or run as a user who may"},
	{fs.ErrNotExist, "look at the path: it does not exist, or not under that name"},
	{fs.ErrExist, "name another, or move what is there away"},
}

// kinds has the least that can be said. A test wants one for every kind.
var kinds = [...]string{
	fault.Internal:    "this is a defect of Palyra, or an error that it does not know: report the command line and this message",
	fault.Usage:       "palyra help COMMAND shows flags, operands and examples",
	fault.NotFound:    "look at the name: what it means is not there",
	fault.NotExec:     hintOtherProgram,
	fault.Denied:      "ask whoever administers the policies and roles; palyra policy why DECISION says which rule it was",
	fault.NotApproved: "a person must say yes: run it on a terminal, or palyra approvals ls",
	fault.Refused:     "palyra sandbox probe says what this host can enforce, and what would mend it",
	fault.Integrity:   "do not rely on what this names: keep it as evidence, and compare it with another copy or a backup",
	fault.BadState:    "look at the owner, mode and content of what this names; it is used again when that is mended",
	fault.Busy:        "try again when whoever uses it is done",
	fault.Unavailable: "try again when less runs; df and ulimit -a say what ran out",
	fault.Timeout:     "try again, with more time if it was too little",
	fault.Canceled:    "it was ended before its end; run it again",
	fault.Unsupported: "this platform has no such mechanism; calls run on Linux only",
}
