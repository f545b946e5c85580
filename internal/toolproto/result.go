package toolproto

import "palyra/internal/canon"

// EchoResult is the result of palyra.echo.
type EchoResult struct {
	Text string `json:"text"`
}

// SleepResult is the result of palyra.sleep.
type SleepResult struct {
	SleptMS int64 `json:"slept_ms"`
}

// Content is a part of some bytes. Text holds it if the part is UTF-8 without
// NUL bytes, Base64 otherwise.
type Content struct {
	Binary bool   `json:"binary"`
	Text   string `json:"text"`
	Base64 string `json:"base64"`
}

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

// ListDirResult is the result of fs.list_dir.
type ListDirResult struct {
	Path      string   `json:"path"`
	Entries   []Entry  `json:"entries"` // by path, folder by folder
	Truncated bool     `json:"truncated"`
	Skipped   []Reason `json:"skipped"` // folders that could not be read, at most MaxSkipped
}

// MaxSkipped bounds the names of skipped things.
const MaxSkipped = 100

// Match is a line that holds the pattern.
type Match struct {
	Path   string `json:"path"`
	Line   int64  `json:"line"`   // from 1
	Column int64  `json:"column"` // byte in the line where the match begins, from 1
	// Text is the line, cut to MaxLine bytes around the match, with U+FFFD for invalid
	// UTF-8.
	Text   string   `json:"text"`
	Cut    bool     `json:"cut,omitempty"`
	Before []string `json:"before,omitempty"`
	After  []string `json:"after,omitempty"`
}

// MaxLine bounds the returned part of a matching line, in bytes.
const MaxLine = 1024

// SearchResult is the result of fs.search.
type SearchResult struct {
	Matches []Match `json:"matches"` // by path, then by line
	Files   int64   `json:"files"`   // that were searched
	Bytes   int64   `json:"bytes"`
	// Stopped is the limit that ended the search early: "max_matches",
	// "max_files", "max_bytes", "entries" or "output"; empty if it came to its end.
	Stopped string `json:"stopped"`
	Binary  int64  `json:"binary"` // files left out because they hold a NUL byte
	Large   int64  `json:"large"`  // files left out for their size
	Special int64  `json:"special"`
	// Skipped are files and folders that could not be read, at most MaxSkipped.
	Skipped []Reason `json:"skipped"`
}

// Flag says that a path that was written is one that other programs run or obey
// without being asked.
type Flag struct {
	Path string `json:"path"`
	Kind string `json:"kind"` // see Place
	Why  string `json:"why"`
}

// Change is a writing tool's change, or intended change, of one path.
type Change struct {
	Path string `json:"path"`
	// Action is "created", "modified", "deleted" or "renamed".
	Action string `json:"action"`
	From   string `json:"from,omitempty"` // the former path, if renamed
	// Before and After are digests of the content; empty if there was or is none.
	Before      canon.Digest `json:"before"`
	After       canon.Digest `json:"after"`
	Size        int64        `json:"size"` // bytes afterwards
	Permissions string       `json:"permissions"`
	// LinksBroken is the number of other names of the former file. They keep its former
	// content.
	LinksBroken int64 `json:"links_broken,omitempty"`
	// SetIDDropped says that the former file was setuid or setgid and the new one is not.
	SetIDDropped bool  `json:"set_id_dropped,omitempty"`
	Hunks        int64 `json:"hunks,omitempty"`
	// Offsets are the lines by which each hunk lay off its stated place; absent if all
	// zero.
	Offsets []int64 `json:"offsets,omitempty"`
}

// WriteFileResult is the result of fs.write_file.
type WriteFileResult struct {
	Change
	Flags []Flag `json:"flags"`
}

// ApplyPatchResult is the result of fs.apply_patch.
type ApplyPatchResult struct {
	DryRun  bool     `json:"dry_run"`
	Changes []Change `json:"changes"` // in the order of the patch
	Flags   []Flag   `json:"flags"`
	// Leftovers are temporary files that could not be removed.
	Leftovers []string `json:"leftovers,omitempty"`
}

// ArtifactReadResult is the result of artifact.read.
type ArtifactReadResult struct {
	Digest     canon.Digest `json:"digest"`
	Size       int64        `json:"size"`
	Offset     int64        `json:"offset"`
	Length     int64        `json:"length"`
	NextOffset int64        `json:"next_offset"` // 0 at the end
	Content    Content      `json:"content"`
}
