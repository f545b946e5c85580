package hub

import (
	"time"

	"palyra/internal/canon"
)

// The states of a layer.
const (
	LayerInUse   = "in use" // a call of its session is under way
	LayerChanged = "changed"
	LayerEmpty   = "empty"
	LayerDamaged = "damaged"
	// LayerUnfinished: bringing its changes to the workspace was interrupted.
	LayerUnfinished = "unfinished"
)

// Layer has what the calls of a session wrote to a staged workspace. It goes with its session,
// when that is retired, or when it is discarded.
type Layer struct {
	Layer     string     `json:"layer"` // its name
	Session   string     `json:"session"`
	Principal string     `json:"principal"`
	State     string     `json:"state"`
	Workspace string     `json:"workspace"` // its directory; "" if the layer is damaged
	Bytes     int64      `json:"bytes"`     // that it takes, after its last call
	Made      *time.Time `json:"made,omitempty"`
}

// LayerQuery chooses layers; zero fields choose all that the caller may see.
type LayerQuery struct {
	PageQuery `of:"layer"`
	Session   string `json:"session,omitempty" in:"query" doc:"the session that they belong to"`
}

// LayerChanges lists what a layer changes in its workspace as that is now.
type LayerChanges struct {
	Layer   Layer         `json:"layer"`
	Version int           `json:"version"` // of the list's format
	Digest  canon.Digest  `json:"digest"`  // of the list; see docs/formats/layer.md
	Changes []LayerChange `json:"changes"` // never null; sorted by path
	Git     *LayerGit     `json:"git,omitempty"`
	Undo    *LayerUndo    `json:"undo,omitempty"` // what takes back the list that was applied last, if one was
}

// LayerUndo is a list that takes back what was applied or undone last.
type LayerUndo struct {
	Digest  string        `json:"digest"`           // "": it can't be taken back
	Reason  string        `json:"reason,omitempty"` // why it can't, a code
	Error   string        `json:"error,omitempty"`  // so too
	Changes []LayerChange `json:"changes"`          // never null; sorted by path
	Git     *LayerGit     `json:"git,omitempty"`
}

// LayerList names a layer and the list of changes that its caller has seen.
type LayerList struct {
	Layer         string `json:"layer" in:"path"`
	LayerListBody `in:"body"`
}

// LayerListBody says which list it is.
type LayerListBody struct {
	Digest string `json:"digest" doc:"of the list that was seen, as getLayer has it"`
}

// Bringing layers to their workspaces. Each begins a run of one call in a session of its own, which
// is decided, asked about where policy says so, and attested as any other.
var (
	// ApplyLayer doesn't wait for the run, which another list ends with "changed".
	ApplyLayer = define[LayerList, Run]("layers.applyLayer", "POST /layers/{layer}/apply", "layer.apply",
		"Bring what a layer changes to its workspace", Operation{Doc: "All of it or nothing, by one call of changes.apply in a run of its own, for which the answer " +
			"doesn't wait. Another list than the digest's ends the run: changed.", Status: 202, Effect: Begins})
	UndoLayer = define[LayerList, Run]("layers.undoLayer", "POST /layers/{layer}/undo", "layer.apply",
		"Take back what was applied from a layer last", Operation{Doc: "By one call of changes.undo, as applyLayer does. The digest is that of undo.", Status: 202, Effect: Begins})
	// RecoverLayer doesn't need the digest: the list was decided about before.
	RecoverLayer = define[string, Run]("layers.recoverLayer", "POST /layers/{layer}/recover", "layer.apply",
		"End an apply that was interrupted", Operation{Doc: "Whole, or as if it had never been, by one call of changes.recover.", Status: 202, Effect: Begins})
)

// LayerGit is what a layer changes in the repository at the top of its workspace.
type LayerGit struct {
	Refs    []LayerRef  `json:"refs"`            // never null; sorted by name
	Head    *LayerMove  `json:"head,omitempty"`  // what is checked out: "ref: refs/heads/…" or an object id
	Index   *LayerMove  `json:"index,omitempty"` // digests of what git ls-files --stage -z prints
	Objects int         `json:"objects"`         // that the host lacks
	Bytes   int64       `json:"bytes"`           // of them, packed
	Pack    string      `json:"pack,omitempty"`  // digest of the pack
	Look    []LayerMark `json:"look,omitempty"`  // files of commits and index that deserve a look: why has the ref and the path
	Left    []LayerSkip `json:"left,omitempty"`  // what stays in the layer when it is applied
}

// LayerMove is a former and a new value.
type LayerMove struct {
	Old string `json:"old"`
	New string `json:"new"`
}

// LayerRef is a branch or tag that comes, moves or goes.
type LayerRef struct {
	Name     string      `json:"name"`
	Kind     string      `json:"kind"`               // "create", "forward", "rewrite" or "delete"
	Old      string      `json:"old"`                // object id; "": there is none
	New      string      `json:"new"`                // object id; "": it goes
	Commits  int         `json:"commits"`            // that the host lacks
	Subjects []string    `json:"subjects,omitempty"` // of the newest of them
	Stale    bool        `json:"stale,omitempty"`    // the host's has moved since the layer was made
	Marks    []LayerMark `json:"marks,omitempty"`
}

// LayerChange is one name whose state in the layer differs from that on the host.
type LayerChange struct {
	Path  string      `json:"path"`            // relative; every byte that isn't printable ASCII as \xNN
	Kind  string      `json:"kind"`            // "create", "modify", "mode", "replace" or "delete"
	Old   *LayerNode  `json:"old,omitempty"`   // on the host
	New   *LayerNode  `json:"new,omitempty"`   // in the layer
	Stale bool        `json:"stale,omitempty"` // the host's file has changed since the layer took it
	Marks []LayerMark `json:"marks,omitempty"` // reasons to look at it
}

// LayerNode is what a name stands for.
type LayerNode struct {
	Type   string       `json:"type"` // "file", "directory", "symlink", "fifo", "socket" or "device"
	Mode   string       `json:"mode"` // octal
	Size   int64        `json:"size"`
	Digest canon.Digest `json:"digest,omitzero"`  // of a file's content; absent if it can't be read
	Target string       `json:"target,omitempty"` // of a link
}

// LayerMark says why a change deserves a look.
type LayerMark struct {
	Kind string `json:"kind"`
	Why  string `json:"why"`
}

// PatchQuery names a layer.
type PatchQuery struct {
	Layer string `json:"layer" in:"path"`
	Files string `json:"files,omitempty" in:"query" doc:"binary: with files that aren't text, which text, the default, leaves out" enum:"text binary"`
}

// FilesBinary is the PatchQuery.Files of a patch with files that aren't text.
const FilesBinary = "binary"

// LayerPatch is what a layer changes as a patch.
type LayerPatch struct {
	Layer   string       `json:"layer"`
	Digest  canon.Digest `json:"digest"`   // of the list of changes
	Patch   []byte       `json:"patch"`    // as git diff prints it, in base64
	LeftOut []LayerSkip  `json:"left_out"` // never null
	Stale   []string     `json:"stale"`    // never null; paths whose file has changed on the host
}

// LayerSkip is a change that the patch lacks.
type LayerSkip struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}
