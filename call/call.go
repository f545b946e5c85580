// Package call is the vocabulary: the parts of a call that its capsule, its spec,
// its card and its receipt have in common, each defined once and below them all.
//
//	f := call.File{Path: "/usr/bin/sort", Digest: sum, Size: n, Pinned: "system"}
//
// The JSON of these types is part of formats that are stored and signed
// (docs/formats/capsule.md, receipt.md). Files in the testdata folders of
// kernel/capsule, isolate, crypt/receipt and hub/run hold its bytes, so a changed
// member fails there first. A format that spells a part in another way has a type
// of its own with the same fields, and the compiler converts: see receipt.Limits.
//
// What it does not protect against: it is plain data and checks nothing. The rules
// for each part are those of the format that it stands in.
package call

import (
	"fmt"
	"time"

	"palyra/internal/canon"
)

// File is a file that was opened and hashed.
type File struct {
	Path   string       `json:"path"`   // links resolved; of an operand and in a spec, as the program sees it
	Digest canon.Digest `json:"digest"` // of the content
	Size   int64        `json:"size"`   // bytes
	// Pinned is "system" (root's, in root's folders, writable by nobody else: the
	// file itself is used) or "sealed" (a copy with all seals, which nobody can
	// change, is used instead). An operand of a capsule is "on_approval": sealed if
	// a person is asked, else only hashed.
	Pinned string `json:"pinned"`
}

// WorkspaceDir is where a program of tier C sees its workspace, unless that is at its own path.
const WorkspaceDir = "/workspace"

// Workspace is a host folder shown to the program: at WorkspaceDir or its own path at tier C, in
// place at tier B.
type Workspace struct {
	Source   string `json:"source"` // on the host, links resolved; the descriptor is what is mounted
	ReadOnly bool   `json:"read_only"`
	UID      uint32 `json:"uid"` // owner on the host: what the program writes belongs to it
	GID      uint32 `json:"gid"`
	// Staged says that the program writes to a layer, and the folder stays as it is. Layer is
	// the layer's name; absent: a new one.
	Staged bool   `json:"staged,omitempty"`
	Layer  string `json:"layer,omitempty"`
	// OwnPath says that the program sees the folder at Source; at tier C only.
	OwnPath bool `json:"own_path,omitempty"`
}

// View is where a program of tier C sees w, or its private workspace if w is nil.
func (w *Workspace) View() string {
	if w != nil && w.OwnPath {
		return w.Source
	}
	return WorkspaceDir
}

// Mount is a host folder that a program of tier C sees read-only, beside its workspace and at
// its own path.
type Mount struct {
	Source string `json:"source"` // on the host, links resolved; the descriptor is what is mounted
	UID    uint32 `json:"uid"`    // owner on the host
	GID    uint32 `json:"gid"`
}

// Secret is a secret of the vault that the program can read in a file.
type Secret struct {
	Name    string       `json:"name"`    // of the file in /run/secrets
	Ref     string       `json:"ref"`     // "vault://global/token"
	Version uint64       `json:"version"` //
	Record  canon.Digest `json:"record"`  // of the sealed record, the file in the vault; it says nothing of the value
}

// EgressSecret is a use of a secret of the vault: palyra-egress puts it into requests to a host,
// and the program can't read it.
type EgressSecret struct {
	Use     string       `json:"use"`     // canonical, of package call/egress: "TOKEN=vault://global/npm header:authorization packages.example:443"
	Version uint64       `json:"version"` //
	Record  canon.Digest `json:"record"`  // as of a Secret
}

// Declared names what the operator declared for a workspace: the call's mounts, caches and
// environment set are the operator's, and none is the proposer's.
type Declared struct {
	Workspace string `json:"workspace"` // the operator's name for it
	// Env is the SHA-256 of the canonical JSON of the environment set: an array of "NAME=VALUE",
	// sorted. Absent: the set is empty.
	Env canon.Digest `json:"env,omitzero"`
}

// MCP is the gist of a question to a server of the Model Context Protocol that runs already.
type MCP struct {
	Server string `json:"server"` // the operator's name for it
	Tool   string `json:"tool"`   // the server's name for it
	// Arguments are "NAME=VALUE", sorted by name. A string is as it is, unless that is JSON or
	// begins with "sha256:"; such a string and all other values are JSON, and one of more than 256
	// bytes its digest. In names "=" and "%" are written %3D and %25.
	Arguments []string `json:"arguments"`
}

// Stdin says what the program reads.
type Stdin struct {
	Mode   string       `json:"mode"`   // "none" (empty), "sealed" (read in full before the decision) or "stream"
	Digest canon.Digest `json:"digest"` // of a sealed one
	Size   int64        `json:"size"`
}

// TTY is a terminal that a call's program gets for itself: standard input, output and error, and
// the controlling terminal of its session.
type TTY struct {
	Rows    uint16 `json:"rows"`    // at the start; a person's terminal may change its size later
	Columns uint16 `json:"columns"` // likewise
	Term    string `json:"term"`    // the kind of terminal, which the program finds as TERM: "xterm-256color"
}

// Limits bound one call. In a capsule and a spec a zero field is an error, never
// "unlimited".
type Limits struct {
	Wall      time.Duration `json:"wall"`       // ns; from start until reaped and drained
	CPU       time.Duration `json:"cpu"`        // ns; per process, whole seconds rounded up (RLIMIT_CPU)
	Memory    int64         `json:"memory"`     // bytes; whole tree where the host can (cgroup v2), else per process
	PIDs      int64         `json:"pids"`       // processes and threads
	Output    int64         `json:"output"`     // bytes of stdout plus stderr kept; the rest is counted and dropped
	FileSize  int64         `json:"file_size"`  // bytes per file written (RLIMIT_FSIZE)
	OpenFiles int64         `json:"open_files"` // RLIMIT_NOFILE
	Disk      int64         `json:"disk"`       // bytes in each private tmpfs (/tmp, /dev/shm, private workspace)
	Inodes    int64         `json:"inodes"`     // files in each private tmpfs
}

// Bytes prints a number of bytes in the largest binary unit that divides it.
func Bytes(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for ; n != 0 && n%1024 == 0 && i < len(units)-1; i++ {
		n /= 1024
	}
	return fmt.Sprintf("%d %s", n, units[i])
}
