package toolproto

import "palyra/internal/canon"

// ReadFile is the name of the tool.
const ReadFile = "fs.read_file"

// ReadFileInput is the input of fs.read_file.
type ReadFileInput struct {
	Workspace string `json:"workspace" tool:"required,min=1,max=64" doc:"name of a workspace"`
	Path      string `json:"path" tool:"required,min=1,max=16380" doc:"regular file; links are followed as long as they stay in the workspace"`
	Unit      string `json:"unit" tool:"default=bytes,enum=bytes|lines" doc:"what offset and limit count"`
	Offset    int64  `json:"offset" tool:"min=0,max=1099511627776" doc:"how many units to leave out at the beginning"`
	Limit     int64  `json:"limit" tool:"default=65536,min=1,max=1048576" doc:"how many units to return at most; of lines, at most 1 MiB"`
}

// InWorkspace returns the name of the workspace.
func (in *ReadFileInput) InWorkspace() string { return in.Workspace }

// Check checks what the bounds of single members do not.
func (in *ReadFileInput) Check() error { return checkPath(in.Path, false) }

// Brief names the file to read.
func (in *ReadFileInput) Brief() []string { return []string{"path=" + in.Path} }

// ReadFileResult is the result of fs.read_file.
type ReadFileResult struct {
	Path string `json:"path"`
	Size int64  `json:"size"` // bytes that were read from it, to its end
	// Digest of the whole file; empty if it is larger than MaxDigested.
	Digest      canon.Digest `json:"digest"`
	Permissions string       `json:"permissions"` // "0644"
	SetID       bool         `json:"set_id"`      // setuid or setgid
	HardLinks   int64        `json:"hard_links"`  // names that the file has, here or elsewhere
	Unit        string       `json:"unit"`
	Offset      int64        `json:"offset"`
	Length      int64        `json:"length"` // units returned
	// NextOffset is the offset to go on at; 0 at the end of the file.
	NextOffset int64   `json:"next_offset"`
	Content    Content `json:"content"`
}

// MaxDigested is the size of the largest file that fs.read_file hashes, and the
// largest that a writing tool reads; bytes.
const MaxDigested = 64 << 20
