package hub

import (
	"time"

	"palyra/internal/canon"
)

// InstructionFiles are the files at a workspace's root that have a project's instructions for
// agents. The first that there is counts.
func InstructionFiles() []string {
	return []string{"PALYRA.md", "AGENTS.md", "CLAUDE.md", ".cursorrules"}
}

// The states of a workspace's instructions.
const (
	InstructionsNone     = "none"     // there is no such file
	InstructionsNew      = "new"      // the caller has accepted none
	InstructionsAccepted = "accepted" // they are those that the caller has accepted
	InstructionsChanged  = "changed"  // they aren't
)

// Instructions are what a workspace tells agents, and what of that a person has accepted.
type Instructions struct {
	Workspace string       `json:"workspace"`
	State     string       `json:"state,omitempty"` // of the file, if it was read
	File      string       `json:"file,omitempty"`
	Digest    canon.Digest `json:"digest,omitzero"` // of the file's content
	Text      string       `json:"text,omitempty"`
	// Signals are signs of orders and of hidden text. With hidden text they're accepted only with
	// anyway.
	Signals  []Signal    `json:"signals,omitempty"`
	Accepted *Instructed `json:"accepted,omitempty"`
}

// Instructed is a person's yes to instructions.
type Instructed struct {
	File   string       `json:"file"`
	Digest canon.Digest `json:"digest"`
	By     string       `json:"by"`
	Time   time.Time    `json:"time"`
	Anyway bool         `json:"anyway,omitempty"` // although they hide something
}

// InstructionsAcceptance accepts the instructions of a workspace.
type InstructionsAcceptance struct {
	Workspace                  string `json:"workspace" in:"path"`
	InstructionsAcceptanceBody `in:"body"`
}

// InstructionsAcceptanceBody says which instructions are accepted.
type InstructionsAcceptanceBody struct {
	Digest string `json:"digest" doc:"of the file's content"`
	Anyway bool   `json:"anyway,omitempty" doc:"although they have hidden text"`
}
