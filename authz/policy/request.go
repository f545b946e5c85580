package policy

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"palyra/authz/access"
	"palyra/call/egress"
)

// The entity types.
const (
	TypeUser       = "Palyra::User"
	TypeDevice     = "Palyra::Device"
	TypeAgent      = "Palyra::Agent"
	TypeRole       = "Palyra::Role"
	TypeTool       = "Palyra::Tool"
	TypeSkill      = "Palyra::Skill"
	TypeSecret     = "Palyra::Secret"
	TypeWorkspace  = "Palyra::Workspace"
	TypeToolGroup  = "Palyra::ToolGroup"  // only in policies: groups of tools
	TypePermission = "Palyra::Permission" // the resource of permission.use
	TypeExecutable = "Palyra::Executable" // only in policies: the resource of interpreter.run
)

// The roles; see rolesOf for their order.
const (
	RoleOwner    = "owner"
	RoleAdmin    = "admin"
	RoleOperator = "operator"
)

// The actions a request may name.
const (
	ToolExecute     = "tool.execute"
	ToolList        = "tool.list"
	DaemonStatus    = "daemon.status"
	SkillExecute    = "skill.execute"
	VaultGet        = "vault.get"
	MemorySearch    = "memory.search"
	ApprovalResolve = "approval.resolve"
	ApprovalSelf    = "approval.self"
	TrustOperate    = "trust.operate"
	WorkspaceManage = "workspace.manage"
	PermissionUse   = "permission.use" // a permission that a request to the daemon takes

	// Only Decide asks about these three.
	interpreterRun = "interpreter.run"
	vaultExpose    = "vault.expose" // a secret that a call's program can read
	vaultUse       = "vault.use"    // a secret that is put into a call's requests, and that its program can't read
)

// The capabilities.
const (
	CapProcessExec     = "process_exec"
	CapNetwork         = "network"
	CapSecretsRead     = "secrets_read"
	CapSecretsUse      = "secrets_use" // without reading them
	CapFilesystemWrite = "filesystem_write"
)

// The networks that a call may ask for. Only in NetworkEgress it reaches hosts.
const (
	NetworkFresh     = "fresh"     // a network namespace of its own, in which nothing can be reached
	NetworkVoid      = "void"      // an empty one that such calls share, and in which no socket can be made
	NetworkLoopback  = "loopback"  // one of its own, in which the programs of the call reach each other
	NetworkSession   = "session"   // such a one that the running calls of a session share
	NetworkHost      = "host"      // the host's, in which nothing is enforced
	NetworkPreflight = "preflight" // the host's, after the names of EgressHosts were looked up and judged
	NetworkEgress    = "egress"    // one of its own, from which the hosts of EgressHosts are reached through palyra-egress, and no other
)

// The states of this boot's sandbox certificate for the tier that a call asks for.
const (
	// CertificateNone: there is none for this boot, kernel, user and palyra-cell, or a claim
	// about the tier is open.
	CertificateNone = "none"
	// CertificateProven: every claim about the tier holds, except those for which this kernel
	// has no mechanism.
	CertificateProven = "proven"
	// CertificateRefuted: a claim about the tier is refuted.
	CertificateRefuted = "refuted"
)

// The scopes of an approval.
const (
	ScopeOnce    = "once"
	ScopeSession = "session"
	ScopeTimed   = "timed"
)

// Request is one question to a Set: may Principal do Action to Resource in this Context?
type Request struct {
	Principal Entity  `json:"principal"`
	Action    string  `json:"action"` // without namespace: "tool.execute"
	Resource  Entity  `json:"resource"`
	Context   Context `json:"context"`

	hosts *egress.Lists // of a policy test that brings its own; nil: the set's
}

// Entity is a principal or a resource. The surface that authenticated the principal sets Roles,
// never the request itself.
type Entity struct {
	Type  string   `json:"type"`            // "Palyra::User"
	ID    string   `json:"id"`              //
	Roles []string `json:"roles,omitempty"` // of a principal: "owner", "admin", "operator"
	// Scopes are the permissions that the principal's credential is limited to. Nil is no
	// limit: the principal holds all permissions of its roles.
	Scopes []string `json:"scopes,omitzero"`
}

// LocalUser is the principal of palyra exec: the user of this machine. The user owns the state
// directory and so has the owner's role.
func LocalUser(name string) Entity {
	return Entity{Type: TypeUser, ID: name, Roles: []string{RoleOwner}}
}

// Tool returns the resource of tool.execute.
func Tool(name string) Entity { return Entity{Type: TypeTool, ID: name} }

// resourceType is the type of resource that each action applies to. It repeats the schema to
// save a lookup in each decision; a test compares them.
var resourceType = map[string]string{
	ToolExecute: TypeTool, SkillExecute: TypeSkill, VaultGet: TypeSecret,
	ToolList: TypeWorkspace, DaemonStatus: TypeWorkspace, MemorySearch: TypeWorkspace,
	ApprovalResolve: TypeWorkspace, ApprovalSelf: TypeWorkspace, TrustOperate: TypeWorkspace, WorkspaceManage: TypeWorkspace,
	PermissionUse: TypePermission,
}

// runsProgram reports whether the action's context is the schema's Call.
func runsProgram(action string) bool { return action == ToolExecute || action == SkillExecute }

// answers reports whether the action's context is the schema's Answer.
func answers(action string) bool { return action == ApprovalResolve || action == ApprovalSelf }

// check says why a request doesn't fit the schema; such a request is denied.
func (r *Request) check() error { return r.checkWith(&given{Context: &r.Context}) }

// checkWith is check with a decision's own given, to save the allocation.
func (r *Request) checkWith(g *given) error {
	switch want, ok := resourceType[r.Action]; {
	case !ok:
		return fmt.Errorf("unknown action %q", r.Action)
	case r.Resource.Type != want:
		return fmt.Errorf("action %q: resource type %q, want %q", r.Action, r.Resource.Type, want)
	}
	switch r.Principal.Type {
	case TypeUser, TypeDevice, TypeAgent:
	default:
		return fmt.Errorf("principal type %q: want Palyra::User, Device or Agent", r.Principal.Type)
	}
	if r.Principal.ID == "" || r.Resource.ID == "" {
		return errors.New("principal or resource without id")
	}
	if len(r.Resource.Roles) > 0 || r.Resource.Scopes != nil {
		return errors.New("a resource holds no roles and no scopes")
	}
	if _, err := access.ParseSet(r.Principal.Scopes); err != nil {
		return err
	}
	if r.Action == PermissionUse {
		if _, err := access.ParseSet([]string{r.Resource.ID}); err != nil {
			return err
		}
	}
	for _, role := range r.Principal.Roles {
		if !slices.Contains(vocabRole, role) {
			return fmt.Errorf("unknown role %q", role)
		}
	}
	if !utf8.ValidString(r.Principal.ID) || !utf8.ValidString(r.Resource.ID) {
		return errors.New("an id is not UTF-8")
	}
	return g.check(r.Action)
}

func (g *given) check(action string) error {
	c, rows := g.Context, checked
	switch a := &c.Answer; {
	case a.Approvers < 0:
		return fmt.Errorf("%d approvers", a.Approvers)
	case *a != Answer{} && !answers(action):
		return fmt.Errorf("action %q has no answer", action)
	case len(c.Secrets) > 0 && !runsProgram(action):
		return fmt.Errorf("action %q has no secrets", action)
	case slices.Contains(c.Secrets, ""):
		return errors.New("a secret without reference")
	case len(c.EgressInspect)+len(c.EgressSecrets) > 0 && !runsProgram(action):
		return fmt.Errorf("action %q has no requests", action)
	case len(c.Features) > 0 && !answers(action) && action != PermissionUse:
		return fmt.Errorf("action %q has no features", action)
	case !answers(action) && action != PermissionUse: // other contexts have none of the rows beyond calls
		rows = checkedCalls
	}
	for i := range rows {
		r := &rows[i]
		if r.text != nil {
			if text := r.text(g); text != "" && !r.takes(text) {
				return r.row.refusal(text)
			}
			continue
		}
		for _, text := range r.set(g) {
			if !r.takes(text) {
				return r.row.refusal(text)
			}
		}
	}
	if err := c.checkEnv(); err != nil {
		return err
	}
	if err := c.checkUses(); err != nil {
		return err
	}
	if err := g.checkSets(); err != nil {
		return err
	}
	if c.Executable.Path == "" && slices.Contains(c.Capabilities, CapProcessExec) && runsProgram(action) {
		return errors.New("process_exec without an executable")
	}
	for _, p := range [...]string{c.Executable.Path, c.Executable.Interpreter} {
		if p != "" && !isResolved(p) {
			return errors.New("executable path is not absolute and resolved")
		}
	}
	return nil
}

// checkUses holds uses of secrets to their one spelling, which their questions are made of.
func (c *Context) checkUses() error {
	for _, text := range c.EgressSecrets {
		if u, err := egress.ParseUse(text); err != nil || u.String() != text {
			return errors.New("egress_secrets has no use of a secret in canonical form")
		}
	}
	return nil
}

func (c *Context) checkEnv() error {
	for _, e := range c.Env {
		if i := strings.IndexByte(e, '='); i < 1 {
			return errors.New("env is not a list of NAME=VALUE")
		}
	}
	if len(c.EnvCode) == 0 {
		return nil
	}
	names := make(map[string]bool)
	for _, n := range c.envNames() {
		names[n] = true
	}
	for _, n := range c.EnvCode {
		if !names[n] {
			return fmt.Errorf("env_code names %q, which env does not set", n)
		}
	}
	return nil
}

// isResolved reports whether p can result from resolving a path: absolute and clean, or with a
// drive or UNC prefix on Windows.
func isResolved(p string) bool {
	if p[0] == '/' {
		return path.Clean(p) == p && p != "/"
	}
	return len(p) > 3 && (p[1] == ':' && p[2] == '\\' || p[0] == '\\' && p[1] == '\\')
}

// The rows whose values a request can get wrong: all of them, and those of calls. They are
// copies, side by side in memory, because every decision reads them.
var (
	checked      = checkedIn(everywhere)
	checkedCalls = checkedIn(inCall)
)

func checkedIn(in contexts) (rows []checkedRow) {
	for i := range attributes {
		if a := &attributes[i]; a.in&in != 0 && a.from != "" && (a.text != nil || a.set != nil) {
			rows = append(rows, checkedRow{a.text, a.set, a.of, a})
		}
	}
	return rows
}

type checkedRow struct {
	text func(*given) string
	set  func(*given) []string
	of   []string
	row  *attribute
}

// takes reports whether a value, or an element, can be the attribute's. Cedar strings are
// Unicode. Bytes that aren't UTF-8 have no Cedar value and no faithful text for a person to
// read.
func (c *checkedRow) takes(text string) bool {
	if c.of == nil {
		return utf8.ValidString(text)
	}
	return slices.Contains(c.of, text)
}

// refusal returns the error for a value, or an element, that the attribute can't have.
func (a *attribute) refusal(text string) error {
	if a.of == nil {
		return fmt.Errorf("context.%s is not UTF-8", a.path)
	}
	return fmt.Errorf("context.%s is never %q: want one of %s", a.path, text, strings.Join(a.of, ", "))
}
