package toolproto

import "strconv"

// ListDir is the name of the tool.
const ListDir = "fs.list_dir"

// ListDirInput is the input of fs.list_dir.
type ListDirInput struct {
	Workspace string   `json:"workspace" tool:"required,min=1,max=64" doc:"name of a workspace"`
	Path      string   `json:"path" tool:"default=.,min=1,max=16380" doc:"folder; no link is followed"`
	Depth     int64    `json:"depth" tool:"default=1,min=1,max=32" doc:"how many levels; 1 is the folder's own entries"`
	Limit     int64    `json:"limit" tool:"default=1000,min=1,max=20000" doc:"how many entries to return at most"`
	Types     []string `json:"types,omitempty" tool:"max=6,enum=file|directory|symlink|fifo|socket|device" doc:"only entries of these types; empty is all"`
}

// InWorkspace returns the name of the workspace.
func (in *ListDirInput) InWorkspace() string { return in.Workspace }

// Check checks what the bounds of single members do not.
func (in *ListDirInput) Check() error { return checkPath(in.Path, true) }

// Brief names the folder to list.
func (in *ListDirInput) Brief() []string {
	return []string{"path=" + in.Path, "depth=" + strconv.FormatInt(in.Depth, 10)}
}

// ListDirResult is the result of fs.list_dir.
type ListDirResult struct {
	Path      string   `json:"path"`
	Entries   []Entry  `json:"entries"` // by path, folder by folder
	Truncated bool     `json:"truncated"`
	Skipped   []Reason `json:"skipped"` // folders that could not be read, at most MaxSkipped
}

// Entry is something in a folder.
type Entry struct {
	Path        string `json:"path"` // below the workspace
	Type        string `json:"type"` // as in ListDirInput.Types
	Size        int64  `json:"size"` // bytes; of files only
	Permissions string `json:"permissions"`
	Modified    string `json:"modified"` // RFC 3339, UTC
	SetID       bool   `json:"set_id,omitempty"`
	HardLinks   int64  `json:"hard_links,omitempty"` // of files, if more than one
	Target      string `json:"target,omitempty"`     // of links, as written there; not followed
	// Leftover marks a temporary file of a writing tool that was killed.
	Leftover bool `json:"leftover,omitempty"`
}

// MaxSkipped bounds the names of skipped things.
const MaxSkipped = 100
