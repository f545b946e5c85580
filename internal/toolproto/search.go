package toolproto

import (
	"fmt"
	"regexp"
	"slices"
)

// Search is the name of the tool.
const Search = "fs.search"

// SearchInput is the input of fs.search.
type SearchInput struct {
	Workspace    string   `json:"workspace" tool:"required,min=1,max=64" doc:"name of a workspace"`
	Pattern      string   `json:"pattern" tool:"required,min=1,max=1000" doc:"what a line has to hold"`
	Regexp       bool     `json:"regexp" doc:"the pattern is an RE2 regular expression, not literal text"`
	IgnoreCase   bool     `json:"ignore_case" doc:"upper and lower case are the same"`
	Path         string   `json:"path" tool:"default=.,min=1,max=16380" doc:"folder or file to search; no link is followed"`
	Globs        []string `json:"globs,omitempty" tool:"max=32,maxlen=256" doc:"only files that match one of these; without a slash the name counts, with one the path below the folder; ** is any number of folders"`
	Exclude      []string `json:"exclude,omitempty" tool:"max=32,maxlen=256" doc:"no files and folders that match one of these"`
	Hidden       bool     `json:"hidden" doc:"also look at names that begin with a dot"`
	Context      int64    `json:"context" tool:"min=0,max=10" doc:"lines to return before and after each match"`
	MaxMatches   int64    `json:"max_matches" tool:"default=200,min=1,max=5000" doc:"stop after so many matching lines"`
	MaxFiles     int64    `json:"max_files" tool:"default=20000,min=1,max=200000" doc:"stop after so many files"`
	MaxBytes     int64    `json:"max_bytes" tool:"default=268435456,min=1,max=1073741824" doc:"stop after so many bytes"`
	MaxFileBytes int64    `json:"max_file_bytes" tool:"default=4194304,min=1,max=67108864" doc:"leave out larger files"`
}

// InWorkspace returns the name of the workspace.
func (in *SearchInput) InWorkspace() string { return in.Workspace }

// Check checks what the bounds of single members do not.
func (in *SearchInput) Check() error {
	if in.Regexp {
		if _, err := in.Compile(); err != nil {
			return usage("invalid_input", "compile pattern", err)
		}
	}
	for _, g := range slices.Concat(in.Globs, in.Exclude) {
		if err := CheckGlob(g); err != nil {
			return usage("invalid_input", fmt.Sprintf("read glob %q", g), err)
		}
	}
	return checkPath(in.Path, true)
}

// Compile returns the pattern as a regular expression.
func (in *SearchInput) Compile() (*regexp.Regexp, error) {
	text := in.Pattern
	if !in.Regexp {
		text = regexp.QuoteMeta(text)
	}
	if in.IgnoreCase {
		text = "(?i)" + text
	}
	return regexp.Compile(text)
}

// Brief names the folder and the pattern of the search.
func (in *SearchInput) Brief() []string { return []string{"path=" + in.Path, "pattern=" + in.Pattern} }

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
