package policy

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"palyra/authz/access"
	"palyra/internal/canon"
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
	TypePermission = "Palyra::Permission" // the resource of permission.use
	TypeExecutable = "Palyra::Executable" // only in policies: the resource of interpreter.run
)

// The roles. Owner holds admin, admin holds operator.
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
	PermissionUse   = "permission.use" // a request to the daemon that takes a permission

	// interpreterRun is asked by Decide itself, never by a caller.
	interpreterRun = "interpreter.run"
)

// The capabilities.
const (
	CapProcessExec     = "process_exec"
	CapNetwork         = "network"
	CapSecretsRead     = "secrets_read"
	CapFilesystemWrite = "filesystem_write"
)

// The networks that a call may ask for. Neither leads anywhere.
const (
	NetworkFresh = "fresh" // a network namespace of its own
	NetworkVoid  = "void"  // an empty one that all such calls share, in which no socket can be made
)

// What the sandbox certificate of this boot says of the tier that a call asks for.
const (
	CertificateNone    = "none"    // there is none of this boot, kernel, user and palyra-cell, or it leaves a claim about the tier open
	CertificateProven  = "proven"  // every claim about it is, but those for which this kernel has no mechanism
	CertificateRefuted = "refuted" // a claim about it is refuted
)

// The scopes of an approval.
const (
	ScopeOnce    = "once"
	ScopeSession = "session"
	ScopeTimed   = "timed"
)

// Request is one question to a Set: may Principal do Action to Resource, in
// this Context?
type Request struct {
	Principal Entity  `json:"principal"`
	Action    string  `json:"action"` // without namespace: "tool.execute"
	Resource  Entity  `json:"resource"`
	Context   Context `json:"context"`
}

// Entity is a principal or a resource. Roles come from whoever authenticated
// the principal, never from the request itself.
type Entity struct {
	Type  string   `json:"type"`            // "Palyra::User"
	ID    string   `json:"id"`              //
	Roles []string `json:"roles,omitempty"` // of a principal: "owner", "admin", "operator"
	// Scopes are the permissions that the principal's credential is limited to.
	// nil: it is not, and the principal holds all that its roles hold.
	Scopes []string `json:"scopes,omitzero"`
}

// LocalUser is the principal of palyra exec: the user of this machine, who owns
// the state directory and so holds the owner's role.
func LocalUser(name string) Entity {
	return Entity{Type: TypeUser, ID: name, Roles: []string{RoleOwner}}
}

// Tool is the resource of tool.execute.
func Tool(name string) Entity { return Entity{Type: TypeTool, ID: name} }

// Context is what policies see of a call. Zero means none or unknown; nothing
// is ever absent. There is no field for approval: Decide asks both ways itself,
// so no caller can claim one.
type Context struct {
	CapsuleDigest     canon.Digest `json:"capsule_digest,omitzero"`
	Executable        Executable   `json:"executable,omitzero"`
	Args              []string     `json:"args,omitempty"` // without argv[0]
	Cwd               string       `json:"cwd,omitempty"`
	EgressHosts       []string     `json:"egress_hosts,omitempty"`
	Capabilities      []string     `json:"capabilities,omitempty"` // of the Cap constants
	Tier              string       `json:"tier,omitempty"`         // the floor: "a", "b", "c"
	Limits            Limits       `json:"limits,omitzero"`
	WorkspaceSource   string       `json:"workspace_source,omitempty"` // host directory; "" is an empty private one
	WorkspaceReadOnly bool         `json:"workspace_read_only,omitempty"`
	Stdin             string       `json:"stdin,omitempty"`       // "none", "sealed", "stream"; "" is "none"
	Network           string       `json:"network,omitempty"`     // "fresh", "void"; "" is "fresh"
	Certificate       string       `json:"certificate,omitempty"` // "none", "proven", "refuted"; "" is "none"
	SessionID         string       `json:"session_id,omitempty"`
	RunID             string       `json:"run_id,omitempty"`
	DeviceID          string       `json:"device_id,omitempty"`
	ChannelID         string       `json:"channel_id,omitempty"`
	Sensitive         bool         `json:"sensitive,omitempty"` // declared by whoever registered the tool
	Env               []string     `json:"env,omitempty"`       // "NAME=VALUE" of the variables that do not have the value that every call's have
	EnvNames          []string     `json:"env_names,omitempty"` // besides those of Env: of a record that keeps no values
	EnvCode           []string     `json:"env_code,omitempty"`  // of these names, those that lead to code that is not the system's
	Unpinned          []string     `json:"unpinned,omitempty"`  // kinds of what is named and not held, of vocabUnpinned
	Features          []string     `json:"features,omitempty"`  // of PermissionUse, ApprovalResolve and ApprovalSelf: what this installation has not turned off
	Answer            Answer       `json:"answer,omitzero"`     // of ApprovalResolve and ApprovalSelf, whose call the rest describes
}

// Answer is what policies see of a yes to a call, beside the call.
type Answer struct {
	Tool      string `json:"tool,omitempty"`
	Requester string `json:"requester,omitempty"` // who wants the call: "uid:1000"
	Approver  string `json:"approver,omitempty"`  // who says yes
	Scope     string `json:"scope,omitempty"`     // "once", "session", "timed"; "" is "once"
	Sensitive bool   `json:"sensitive,omitempty"` // the call's tool is declared sensitive
	Pattern   bool   `json:"pattern,omitempty"`   // to every call that fits a pattern, not to this capsule alone
	Approvers int64  `json:"approvers,omitempty"` // how many people said yes by now, this one included
}

// Executable is the file that will run. What policy knows of its name is
// derived from Path and Interpreter here, never taken from the caller.
type Executable struct {
	Path        string       `json:"path,omitempty"` // resolved, absolute
	Digest      canon.Digest `json:"digest,omitzero"`
	System      bool         `json:"system,omitempty"`      // root's file in root's directories, writable by nobody else
	Interpreter string       `json:"interpreter,omitempty"` // of a #! script: resolved path of the binary that reads it
}

// Limits are the bounds the call asks for.
type Limits struct {
	Wall     time.Duration `json:"wall,omitempty"`      // ns
	CPU      time.Duration `json:"cpu,omitempty"`       // ns
	Memory   int64         `json:"memory,omitempty"`    // bytes
	PIDs     int64         `json:"pids,omitempty"`      //
	Output   int64         `json:"output,omitempty"`    // bytes
	FileSize int64         `json:"file_size,omitempty"` // bytes
}

// resourceType is the type of resource that each action applies to. It repeats
// the schema so that a decision costs no schema lookup; a test compares them.
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

// The closed vocabularies. A policy that compares with anything else could
// never match and is refused (validate.go); a request with anything else is
// denied.
var (
	vocabTier         = []string{"a", "b", "c"}
	vocabStdin        = []string{"none", "sealed", "stream"}
	vocabNetwork      = []string{NetworkFresh, NetworkVoid}
	vocabCertificate  = []string{CertificateNone, CertificateProven, CertificateRefuted}
	vocabScope        = []string{ScopeOnce, ScopeSession, ScopeTimed}
	vocabCapabilities = [...]string{CapFilesystemWrite, CapNetwork, CapProcessExec, CapSecretsRead}
	vocabUnpinned     = []string{"absent", "directory", "library", "special", "symlink", "too_large", "unreadable"}
	vocabKind         = []string{string(Shell), string(Interpreter), string(Loader), string(Wrapper), string(Other)}
	vocabRole         = []string{RoleAdmin, RoleOperator, RoleOwner}
	vocabFeature      = access.FeatureNames()
)

// check says why a request is no question at all; such a request is denied.
// Cedar strings are Unicode, so bytes that are not UTF-8 have no Cedar value
// and no faithful text for a person to read.
func (r *Request) check() error {
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
	if err := r.Context.check(r.Action); err != nil {
		return err
	}
	return r.checkText()
}

func (c *Context) check(action string) error {
	if c.Tier != "" && !slices.Contains(vocabTier, c.Tier) {
		return fmt.Errorf("unknown tier %q", c.Tier)
	}
	if c.Stdin != "" && !slices.Contains(vocabStdin, c.Stdin) {
		return fmt.Errorf("unknown stdin mode %q", c.Stdin)
	}
	if c.Network != "" && !slices.Contains(vocabNetwork, c.Network) {
		return fmt.Errorf("unknown network %q", c.Network)
	}
	if c.Certificate != "" && !slices.Contains(vocabCertificate, c.Certificate) {
		return fmt.Errorf("unknown certificate %q", c.Certificate)
	}
	switch a := &c.Answer; {
	case a.Scope != "" && !slices.Contains(vocabScope, a.Scope):
		return fmt.Errorf("unknown scope %q", a.Scope)
	case a.Approvers < 0:
		return fmt.Errorf("%d approvers", a.Approvers)
	case *a != Answer{} && !answers(action):
		return fmt.Errorf("action %q has no answer", action)
	case len(c.Features) > 0 && !answers(action) && action != PermissionUse:
		return fmt.Errorf("action %q has no features", action)
	}
	if _, err := access.ParseFeatures(c.Features); err != nil {
		return err
	}
	for _, v := range c.Capabilities {
		if !slices.Contains(vocabCapabilities[:], v) {
			return fmt.Errorf("unknown capability %q", v)
		}
	}
	for _, v := range c.Unpinned {
		if !slices.Contains(vocabUnpinned, v) {
			return fmt.Errorf("unknown kind %q of what is not held", v)
		}
	}
	if err := c.checkEnv(); err != nil {
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

func (c *Context) checkEnv() error {
	for _, e := range c.Env {
		if i := strings.IndexByte(e, '='); i < 1 {
			return errors.New("env is not a list of NAME=VALUE")
		}
	}
	if len(c.EnvCode) == 0 {
		return nil
	}
	names := c.envNames()
	for _, n := range c.EnvCode {
		if !slices.Contains(names, n) {
			return fmt.Errorf("env_code names %q, which env does not set", n)
		}
	}
	return nil
}

// envNames are the names of the variables that differ.
func (c *Context) envNames() []string {
	names := slices.Clone(c.EnvNames)
	for _, e := range c.Env {
		name, _, _ := strings.Cut(e, "=")
		names = append(names, name)
	}
	return names
}

// isResolved reports whether p can be the result of resolving a path: absolute
// and clean, or with a drive or UNC prefix on Windows.
func isResolved(p string) bool {
	if p[0] == '/' {
		return path.Clean(p) == p && p != "/"
	}
	return len(p) > 3 && (p[1] == ':' && p[2] == '\\' || p[0] == '\\' && p[1] == '\\')
}

// checkText is the part of check that reads every byte.
func (r *Request) checkText() error {
	c := &r.Context
	for _, s := range [...]string{r.Principal.ID, r.Resource.ID, c.Executable.Path, c.Executable.Interpreter, c.Cwd,
		c.WorkspaceSource, c.SessionID, c.RunID, c.DeviceID, c.ChannelID, c.Answer.Tool, c.Answer.Requester, c.Answer.Approver} {
		if !utf8.ValidString(s) {
			return errors.New("text is not UTF-8")
		}
	}
	for _, ss := range [...][]string{c.Args, c.EgressHosts, c.Env, c.EnvNames, c.EnvCode} {
		for _, s := range ss {
			if !utf8.ValidString(s) {
				return errors.New("text is not UTF-8")
			}
		}
	}
	return nil
}
