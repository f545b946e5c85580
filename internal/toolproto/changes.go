package toolproto

import (
	"errors"
	"fmt"
	"strings"

	"palyra/internal/canon"
)

// The names of the tools for the layers of staged workspaces.
const (
	ChangesApply   = "changes.apply"
	ChangesUndo    = "changes.undo"
	ChangesRecover = "changes.recover"
)

// Bounds of a change list that is applied, undone or recovered.
const (
	MaxChanges = 10_000   // names
	MaxApplied = 32 << 20 // bytes of content, of the former and of the new one each
	// MaxMarked bounds the marks: each is in the brief, and so on the card.
	MaxMarked = 256
	// MaxGist bounds the brief, which names every change, in bytes of a card's rows: a card may
	// have approval.MaxCard.
	MaxGist = 192 << 10
)

// Node is what a name stands for before or after a change: docs/formats/layer.md.
type Node struct {
	Type   string       `json:"type"`
	Mode   string       `json:"mode"`            // octal, with the set-id bits and the sticky bit: "0644"
	Size   int64        `json:"size"`            // bytes of a file; else 0
	Digest canon.Digest `json:"digest,omitzero"` // of a file's content; absent where it can't be read
	Target string       `json:"target,omitempty"`
}

// The types of a Node.
const (
	NodeFile      = "file"
	NodeDirectory = "directory"
	NodeSymlink   = "symlink"
)

// ListedChange is one change of a ChangeList.
type ListedChange struct {
	Path string `json:"path"`
	Kind string `json:"kind"`
	Old  *Node  `json:"old"` // on the host; null: there is none
	New  *Node  `json:"new"` // in the layer; null: it is gone
}

// ChangeList is the list of a layer's changes. Its canonical JSON has the digest by which
// they're approved and applied.
type ChangeList struct {
	Version int            `json:"version"`
	Changes []ListedChange `json:"changes"`
	Git     *GitChanges    `json:"git,omitempty"` // since version 2
}

// ChangesInput is the input of changes.apply and changes.undo, and of changes.recover, which
// ends what either left half done. The payload behind it is the list in canonical JSON, a
// newline, and unless it recovers the content of each new file, in the list's order, without
// those of .git, then packed-refs, index and pack of the list's git.
type ChangesInput struct {
	Layer  string `json:"layer" tool:"required,min=1,max=64" doc:"name of a layer"`
	Digest string `json:"digest" tool:"required,min=71,max=71" doc:"sha256:… of the change list, as palyra changes show prints it; another list is refused"`
	// ID is set by the kernel: it's in the names of the files beside those that change.
	ID string `json:"id,omitempty" tool:"hidden,max=26"`
	// Gist is set by the kernel: what policy and card see of the list.
	Gist []string `json:"gist,omitempty" tool:"hidden,max=16384,maxlen=20000"`
}

// Check checks what the bounds of single members do not.
func (in *ChangesInput) Check() error {
	if strings.Trim(in.ID, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") != "" {
		return usage("invalid_input", "check id", errors.New("not one of the kernel's"))
	}
	return checkDigest(in.Digest)
}

// Brief names the layer and the list, and says what is in it.
func (in *ChangesInput) Brief() []string {
	return append([]string{"layer=" + in.Layer, "digest=" + in.Digest}, in.Gist...)
}

// Temp returns the name of the file or folder that stands beside the n-th name that a list
// changes: its new content until that is in place, its former content afterwards.
func (in *ChangesInput) Temp(n int) string { return fmt.Sprintf(".palyra-was-%s-%d.tmp", in.ID, n) }

// Done returns the name of the empty file that stands in the workspace from when all is in
// place and flushed until the former content is gone.
func (in *ChangesInput) Done() string { return fmt.Sprintf(".palyra-was-%s-done.tmp", in.ID) }

// InGit reports whether a name is git's own: such changes stay in the layer.
func InGit(name string) bool {
	for e := range strings.SplitSeq(name, "/") {
		if strings.EqualFold(e, ".git") {
			return true
		}
	}
	return false
}

// ChangesResult is the result of the three.
type ChangesResult struct {
	Digest  string `json:"digest"`
	Applied bool   `json:"applied"` // the workspace is as the list says; else as it was
	Changes int64  `json:"changes"` // of the list, without those of .git
	Refs    int64  `json:"refs,omitempty"`
	// Left lists names that another writer changed meanwhile, which stay as they are.
	Left []Left `json:"left,omitempty"`
}
