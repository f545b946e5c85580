package access

import (
	"encoding/json"
	"fmt"
	"strings"

	"palyra/internal/fault"
)

// Permission is one thing that a principal may be allowed to do.
type Permission string

// The permissions.
const (
	SessionRead     Permission = "session.read"     // see sessions, runs and tapes
	SessionWrite    Permission = "session.write"    // make and end sessions
	RunStart        Permission = "run.start"        // start runs and make calls
	RunCancel       Permission = "run.cancel"       // cancel runs; the emergency stop
	ApprovalRead    Permission = "approval.read"    // see requests for approval
	ApprovalResolve Permission = "approval.resolve" // answer them
	PolicyRead      Permission = "policy.read"      // see policy, explain, test
	PolicyManage    Permission = "policy.manage"    // reload policy
	// TrustOperate: decide whom to trust, such as patterns for sensitive tools; keys,
	// certificates, pairing.
	TrustOperate Permission = "trust.operate"
	TokenManage  Permission = "token.manage"  // mint, rotate and revoke one's own tokens
	MemberManage Permission = "member.manage" // members, and revoking tokens of others
	ConfigRead   Permission = "config.read"   // see configuration, status in full, doctor
	JournalRead  Permission = "journal.read"  // journal entries, proofs, receipts
	ArtifactRead Permission = "artifact.read" // content of artifacts
	BackupManage Permission = "backup.manage" // make backups, which hold everything
	// WorkspaceManage: let calls write into a workspace again and again; declare
	// workspaces.
	WorkspaceManage Permission = "workspace.manage"
	VaultManage     Permission = "vault.manage" // the vault; say yes to what is given secrets
	// LayerApply: bring what is in a layer to its workspace, and take it back. It's for people: a
	// token has it only if it was made with it.
	LayerApply Permission = "layer.apply"
	// MemoryManage: read and change one's own memory as a person does. It's for people: what a person
	// wrote is what agents begin with. An agent has the tools for it.
	MemoryManage Permission = "memory.manage"
)

// TrustOperate, WorkspaceManage and VaultManage guard yeses, too: the built-in policies ask for
// them (authz/policy/default/20-roles.cedar).

// Role is a member's role. The zero Role holds nothing.
type Role string

// The roles. Each holds everything that the ones after it hold.
const (
	Owner    Role = "owner"
	Admin    Role = "admin"
	Operator Role = "operator"
)

// table lists the permissions; the index is the bit in a Set, and append-only.
// The role is the least that holds it.
var table = [...]struct {
	permission Permission
	least      Role
}{
	{SessionRead, Operator},
	{SessionWrite, Operator},
	{RunStart, Operator},
	{RunCancel, Operator},
	{ApprovalRead, Operator},
	{ApprovalResolve, Operator},
	{PolicyRead, Operator},
	{PolicyManage, Admin},
	{TrustOperate, Owner},
	{TokenManage, Operator},
	{MemberManage, Admin},
	{ConfigRead, Operator},
	{JournalRead, Operator},
	{ArtifactRead, Operator},
	{BackupManage, Owner},
	{WorkspaceManage, Admin},
	{VaultManage, Admin},
	{LayerApply, Operator},
	{MemoryManage, Operator},
}

// rank orders roles: 0 is none.
func (r Role) rank() int {
	switch r {
	case Owner:
		return 3
	case Admin:
		return 2
	case Operator:
		return 1
	}
	return 0
}

// Permissions returns a role's permissions; none for an unknown role.
func (r Role) Permissions() (s Set) {
	for i, row := range table {
		if r.rank() >= row.least.rank() {
			s |= 1 << i
		}
	}
	return s
}

// ParseRole returns the role of this name, or fault.Usage "invalid_input".
func ParseRole(s string) (Role, error) {
	if r := Role(s); r.rank() > 0 {
		return r, nil
	}
	return "", fault.New(fault.Usage, "invalid_input", "parse role", fmt.Errorf("%.20q is not owner, admin or operator", s)).
		WithHint("roles are operator, admin and owner")
}

// Set is a set of permissions. The zero Set is empty.
type Set uint32

// All returns the set of every permission.
func All() Set { return 1<<len(table) - 1 }

// ParseSet returns the set of these names. An unknown name is fault.Usage "invalid_input";
// no names are the empty set, never all.
func ParseSet(names []string) (s Set, err error) {
	for _, n := range names {
		b := bit(Permission(n))
		if b == 0 {
			return 0, fault.New(fault.Usage, "invalid_input", "parse scopes", fmt.Errorf("%.40q is no permission", n)).
				WithHint("permissions are " + All().String())
		}
		s |= b
	}
	return s, nil
}

func bit(p Permission) Set {
	for i, row := range table {
		if row.permission == p {
			return 1 << i
		}
	}
	return 0
}

// Has reports whether p is in s.
func (s Set) Has(p Permission) bool { return s&bit(p) != 0 }

// Within reports whether all of s is in t.
func (s Set) Within(t Set) bool { return s&^t == 0 }

// List returns the permissions in the order of the table.
func (s Set) List() []Permission {
	out := []Permission{}
	for i, row := range table {
		if s&(1<<i) != 0 {
			out = append(out, row.permission)
		}
	}
	return out
}

// String returns the names with spaces between them; ParseSet of its fields is s.
func (s Set) String() string {
	var b strings.Builder
	for i, p := range s.List() {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(string(p))
	}
	return b.String()
}

// MarshalJSON writes the list of names.
func (s Set) MarshalJSON() ([]byte, error) { return json.Marshal(s.List()) }

// UnmarshalJSON is the inverse of MarshalJSON.
func (s *Set) UnmarshalJSON(b []byte) error {
	var names []string
	if err := json.Unmarshal(b, &names); err != nil {
		return err
	}
	var err error
	*s, err = ParseSet(names)
	return err
}
