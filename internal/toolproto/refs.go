package toolproto

import "palyra/internal/canon"

// Bounds of what is brought to a repository.
const (
	MaxRefs     = 100       // branches and tags
	MaxSubjects = 20        // that are shown of a ref
	SmallPack   = 256 << 10 // bytes of objects
)

// GitChanges is what a list brings to the repository at the top of the workspace:
// docs/formats/layer.md.
type GitChanges struct {
	Refs   []RefChange    `json:"refs"` // sorted by name
	Head   *HeadChange    `json:"head,omitempty"`
	Index  *IndexChange   `json:"index,omitempty"`
	Packed *PackedChange  `json:"packed_refs,omitempty"`
	Pack   *ObjectsChange `json:"pack,omitempty"`
}

// RefChange is a branch or a tag that comes, moves or goes. The names are escaped.
type RefChange struct {
	Name string `json:"name"`
	Old  string `json:"old"`            // object id; "": there is none
	New  string `json:"new"`            // object id; "": it goes
	Mode string `json:"mode,omitempty"` // of the ref's file on the host, absent where it has none
}

// HeadChange is another HEAD: "ref: refs/heads/…", or an object id.
type HeadChange struct {
	Old  string `json:"old"`
	New  string `json:"new"`
	Mode string `json:"mode"`
}

// IndexChange is an index with other entries. The digests are of what git ls-files --stage -z
// prints.
type IndexChange struct {
	Old  canon.Digest `json:"old,omitzero"` // absent: there is none
	New  canon.Digest `json:"new,omitzero"` // absent: it goes
	Size int64        `json:"size"`         // bytes of the payload
	Mode string       `json:"mode"`
}

// PackedChange is the file packed-refs without the refs that go.
type PackedChange struct {
	Old canon.Digest `json:"old"`
	New canon.Digest `json:"new"`

	OldSize int64  `json:"old_size"`
	Size    int64  `json:"size"` // bytes of the payload
	Mode    string `json:"mode"`
}

// ObjectsChange is the objects that the repository lacks, as a pack.
type ObjectsChange struct {
	Digest  canon.Digest `json:"digest"`
	Size    int64        `json:"size"` // bytes of the payload
	Objects int          `json:"objects"`
}

// Size returns the bytes of payload.
func (g *GitChanges) Size() (n int64) {
	if g == nil {
		return 0
	}
	if g.Packed != nil {
		n += g.Packed.Size
	}
	if g.Index != nil {
		n += g.Index.Size
	}
	if g.Pack != nil {
		n += g.Pack.Size
	}
	return n
}

// The kinds of marks of refs.
const (
	MarkRewritten = "ref_rewritten"
	MarkRefGone   = "ref_deleted"
	MarkRefOther  = "ref_other"
	MarkTag       = "ref_tag"
	MarkHead      = "head_switched"
	MarkCommits   = "ref_large"
)
