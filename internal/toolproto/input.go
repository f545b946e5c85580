package toolproto

import (
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"palyra/internal/canon"
)

// The inputs. Each member has two tags beside its name: tool holds the bounds
// that Decode applies (see Members), doc the sentence of the schema. Lengths of
// strings are characters. Members whose zero value Decode would refuse are left
// out where they are zero.

// EchoInput is the input of palyra.echo.
type EchoInput struct {
	Text string `json:"text" tool:"required,max=65536" doc:"what to give back"`
}

// SleepInput is the input of palyra.sleep.
type SleepInput struct {
	MS int64 `json:"ms" tool:"required,min=0,max=60000" doc:"how long, in milliseconds"`
}

// ReadFileInput is the input of fs.read_file.
type ReadFileInput struct {
	Workspace string `json:"workspace" tool:"required,min=1,max=64" doc:"name of a workspace"`
	Path      string `json:"path" tool:"required,min=1,max=16380" doc:"regular file; links are followed as long as they stay in the workspace"`
	Unit      string `json:"unit" tool:"default=bytes,enum=bytes|lines" doc:"what offset and limit count"`
	Offset    int64  `json:"offset" tool:"min=0,max=1099511627776" doc:"how many units to leave out at the beginning"`
	Limit     int64  `json:"limit" tool:"default=65536,min=1,max=1048576" doc:"how many units to return at most; of lines, at most 1 MiB"`
}

// ListDirInput is the input of fs.list_dir.
type ListDirInput struct {
	Workspace string   `json:"workspace" tool:"required,min=1,max=64" doc:"name of a workspace"`
	Path      string   `json:"path" tool:"default=.,min=1,max=16380" doc:"folder; no link is followed"`
	Depth     int64    `json:"depth" tool:"default=1,min=1,max=32" doc:"how many levels; 1 is the folder's own entries"`
	Limit     int64    `json:"limit" tool:"default=1000,min=1,max=20000" doc:"how many entries to return at most"`
	Types     []string `json:"types,omitempty" tool:"max=6,enum=file|directory|symlink|fifo|socket|device" doc:"only entries of these types; empty is all"`
}

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

// WriteFileInput is the input of fs.write_file.
type WriteFileInput struct {
	Workspace      string `json:"workspace" tool:"required,min=1,max=64" doc:"name of a workspace"`
	Path           string `json:"path" tool:"required,min=1,max=16380" doc:"file to write; no link is followed on the way"`
	Mode           string `json:"mode" tool:"required,enum=create|overwrite|append" doc:"create: it must not exist; overwrite: replace or create it; append: add to its end or create it"`
	Content        string `json:"content" tool:"required" doc:"the bytes, in the encoding"`
	Encoding       string `json:"encoding" tool:"default=utf-8,enum=utf-8|base64" doc:"how content spells bytes"`
	ExpectedDigest string `json:"expected_digest,omitempty" tool:"max=71" doc:"sha256:… of the content that the caller believes is there; anything else there is a conflict"`
	Permissions    string `json:"permissions,omitempty" tool:"enum=0644|0755" doc:"permission bits; left out, those of the file that is replaced, else 0644"`
	Parents        bool   `json:"parents" doc:"make missing folders"`
}

// ApplyPatchInput is the input of fs.apply_patch.
type ApplyPatchInput struct {
	Workspace string `json:"workspace" tool:"required,min=1,max=64" doc:"name of a workspace"`
	Patch     string `json:"patch" tool:"required,min=1" doc:"unified diff of any number of files, as git diff or diff -u prints it"`
	Encoding  string `json:"encoding" tool:"default=utf-8,enum=utf-8|base64" doc:"how patch spells bytes"`
	Offset    int64  `json:"offset" tool:"min=0,max=10000" doc:"how many lines a hunk may lie from where it says; its lines must always match exactly, and in one place only"`
	DryRun    bool   `json:"dry_run" doc:"plan and check everything, change nothing"`
}

// ArtifactReadInput is the input of artifact.read.
type ArtifactReadInput struct {
	Digest string `json:"digest" tool:"required,min=71,max=71" doc:"sha256:… of the artifact"`
	Offset int64  `json:"offset" tool:"min=0,max=1099511627776" doc:"how many bytes to leave out at the beginning"`
	Limit  int64  `json:"limit" tool:"default=65536,min=1,max=524288" doc:"how many bytes to return at most"`
	// Size is set by the kernel: bytes of the whole artifact. The payload behind
	// the input is the part that was asked for.
	Size int64 `json:"size" tool:"hidden,min=0,max=9007199254740992"`
}

// InWorkspace returns the name of the workspace.
func (in *ReadFileInput) InWorkspace() string { return in.Workspace }

// InWorkspace returns the name of the workspace.
func (in *ListDirInput) InWorkspace() string { return in.Workspace }

// InWorkspace returns the name of the workspace.
func (in *SearchInput) InWorkspace() string { return in.Workspace }

// InWorkspace returns the name of the workspace.
func (in *WriteFileInput) InWorkspace() string { return in.Workspace }

// InWorkspace returns the name of the workspace.
func (in *ApplyPatchInput) InWorkspace() string { return in.Workspace }

// Bytes returns the content that is to be written.
func (in *WriteFileInput) Bytes() ([]byte, error) { return decodeContent(in.Content, in.Encoding) }

// Bytes returns the patch.
func (in *ApplyPatchInput) Bytes() ([]byte, error) { return decodeContent(in.Patch, in.Encoding) }

func decodeContent(s, encoding string) ([]byte, error) {
	if encoding != "base64" {
		return []byte(s), nil
	}
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || base64.StdEncoding.EncodeToString(b) != s {
		return nil, usage("invalid_input", "decode content", errors.New("not base64 with padding and without line breaks"))
	}
	return b, nil
}

// Check checks what the bounds of single members do not.
func (in *ReadFileInput) Check() error { return checkPath(in.Path, false) }

// Check checks what the bounds of single members do not.
func (in *ListDirInput) Check() error { return checkPath(in.Path, true) }

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

// Check checks what the bounds of single members do not.
func (in *WriteFileInput) Check() error {
	if _, err := in.Bytes(); err != nil {
		return err
	}
	if err := checkDigest(in.ExpectedDigest); err != nil {
		return err
	}
	if in.ExpectedDigest != "" && in.Mode == "create" {
		return usage("invalid_input", "check expected_digest", errors.New("what is created has no former content"))
	}
	return checkPath(in.Path, false)
}

// Check checks what the bounds of single members do not.
func (in *ApplyPatchInput) Check() error {
	_, err := in.Bytes()
	return err
}

// Check checks what the bounds of single members do not.
func (in *ArtifactReadInput) Check() error { return checkDigest(in.Digest) }

func checkDigest(s string) error {
	if _, err := canon.ParseDigest(s); err != nil {
		return usage("invalid_input", "read digest", err)
	}
	return nil
}

func checkPath(s string, dot bool) error {
	name, err := ParsePath(s)
	if err == nil && name == "." && !dot {
		err = usage("invalid_input", `read path "."`, errors.New("names the workspace itself"))
	}
	return err
}

// RunInput is the input of process.run when the call is made by its input.
type RunInput struct {
	Argv      []string `json:"argv" tool:"required,min=1,max=4096,maxlen=131071" doc:"program and arguments; no shell reads them. The program is a name for the search path, an absolute path, or a path in the workspace that holds a slash"`
	Env       []string `json:"env" tool:"max=256,maxlen=131071" doc:"NAME=VALUE, on top of the environment that the kernel builds"`
	Workspace string   `json:"workspace,omitempty" tool:"min=1,max=64" doc:"name of a workspace, seen at /workspace; left out, an empty private one"`
	ReadOnly  bool     `json:"read_only" doc:"the program cannot write in the workspace"`
	Cwd       string   `json:"cwd" tool:"default=.,min=1,max=16380" doc:"folder of the workspace to start in"`
	Stdin     string   `json:"stdin" doc:"standard input, in the encoding"`
	Encoding  string   `json:"encoding" tool:"default=utf-8,enum=utf-8|base64" doc:"how stdin spells bytes"`
	Network   string   `json:"network" tool:"default=fresh,enum=fresh|void" doc:"fresh: a network namespace of its own with nothing in it; void: no sockets at all, which starts faster"`
	TimeoutMS int64    `json:"timeout_ms" tool:"default=60000,min=1,max=86400000" doc:"wall-clock limit in milliseconds"`
	CPUMS     int64    `json:"cpu_ms" tool:"default=60000,min=1,max=86400000" doc:"processor limit of each process in milliseconds"`
	Memory    int64    `json:"memory" tool:"default=1073741824,min=1048576,max=17592186044416" doc:"memory limit in bytes"`
	PIDs      int64    `json:"pids" tool:"default=256,min=1,max=65536" doc:"limit of processes and threads"`
	Output    int64    `json:"output" tool:"default=16777216,min=1,max=1099511627776" doc:"bytes of standard output and error that are kept"`
}

// Bytes returns the standard input.
func (in *RunInput) Bytes() ([]byte, error) { return decodeContent(in.Stdin, in.Encoding) }

// Check checks what the bounds of single members do not.
func (in *RunInput) Check() error {
	if _, err := in.Bytes(); err != nil {
		return err
	}
	if in.Workspace == "" && (in.Cwd != "." || in.ReadOnly) {
		return usage("invalid_input", "check workspace", errors.New("cwd and read_only need a workspace"))
	}
	return checkPath(in.Cwd, true)
}
