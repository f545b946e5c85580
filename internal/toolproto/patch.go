package toolproto

// ApplyPatch is the name of the tool.
const ApplyPatch = "fs.apply_patch"

// ApplyPatchInput is the input of fs.apply_patch.
type ApplyPatchInput struct {
	Workspace string `json:"workspace" tool:"required,min=1,max=64" doc:"name of a workspace"`
	Patch     string `json:"patch" tool:"required,min=1" doc:"unified diff of any number of files, as git diff or diff -u prints it"`
	Encoding  string `json:"encoding" tool:"default=utf-8,enum=utf-8|base64" doc:"how patch spells bytes"`
	Offset    int64  `json:"offset" tool:"min=0,max=10000" doc:"how many lines a hunk may lie from where it says; its lines must always match exactly, and in one place only"`
	DryRun    bool   `json:"dry_run" doc:"plan and check everything, change nothing"`
}

// InWorkspace returns the name of the workspace.
func (in *ApplyPatchInput) InWorkspace() string { return in.Workspace }

// Bytes returns the patch.
func (in *ApplyPatchInput) Bytes() ([]byte, error) { return decodeContent(in.Patch, in.Encoding) }

// Check checks what the bounds of single members do not.
func (in *ApplyPatchInput) Check() error {
	_, err := in.Bytes()
	return err
}

// ApplyPatchResult is the result of fs.apply_patch.
type ApplyPatchResult struct {
	DryRun  bool     `json:"dry_run"`
	Changes []Change `json:"changes"` // in the order of the patch
	Flags   []Flag   `json:"flags"`
	// Leftovers are temporary files that could not be removed.
	Leftovers []string `json:"leftovers,omitempty"`
}
