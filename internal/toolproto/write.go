package toolproto

import (
	"errors"
	"strconv"

	"palyra/internal/canon"
)

// WriteFile is the name of the tool.
const WriteFile = "fs.write_file"

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

// InWorkspace returns the name of the workspace.
func (in *WriteFileInput) InWorkspace() string { return in.Workspace }

// Bytes returns the content that is to be written.
func (in *WriteFileInput) Bytes() ([]byte, error) { return decodeContent(in.Content, in.Encoding) }

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

// Brief names the file and the content to write, and says whether other programs run or
// obey it.
func (in *WriteFileInput) Brief() []string {
	b, err := in.Bytes()
	if err != nil {
		return nil // Check has refused it
	}
	out := []string{"path=" + in.Path, "mode=" + in.Mode, "size=" + strconv.Itoa(len(b)), "digest=" + canon.Sum(b).String()}
	if in.Permissions != "" {
		out = append(out, "permissions="+in.Permissions)
	}
	if name, err := ParsePath(in.Path); err == nil {
		if kind := FlagOf(name, in.Permissions); kind != "" {
			out = append(out, "flag="+kind)
		}
	}
	return out
}

// WriteFileResult is the result of fs.write_file.
type WriteFileResult struct {
	Change
	Flags []Flag `json:"flags"`
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
