package toolproto

import (
	"encoding/json"
	"strconv"
	"time"
)

// The names of the tools for processes in the background. The payload behind each input is the
// result, which palyrad has made: a cell can't ask palyrad.
const (
	ProcessList   = "process.list"
	ProcessStatus = "process.status"
	ProcessOutput = "process.output"
	ProcessStop   = "process.stop"
)

// Background reports whether an input of process.run asks for the background. The gate decodes
// it strictly; of an input that it refuses the answer doesn't matter.
func Background(input []byte) bool {
	var in struct {
		Background bool `json:"background"`
	}
	return json.Unmarshal(input, &in) == nil && in.Background
}

// ProcessListInput is the input of process.list.
type ProcessListInput struct {
	Session string `json:"session,omitempty" tool:"max=64" doc:"only those of this session"`
}

// Brief names the session.
func (in *ProcessListInput) Brief() []string {
	if in.Session == "" {
		return nil
	}
	return []string{"session=" + in.Session}
}

// ProcessStatusInput is the input of process.status.
type ProcessStatusInput struct {
	ID string `json:"id" tool:"required,min=1,max=64" doc:"of the process: run_…"`
}

// Brief names the process.
func (in *ProcessStatusInput) Brief() []string { return []string{"id=" + in.ID} }

// ProcessStopInput is the input of process.stop.
type ProcessStopInput struct {
	ID string `json:"id" tool:"required,min=1,max=64" doc:"of the process: run_…"`
}

// Brief names the process.
func (in *ProcessStopInput) Brief() []string { return []string{"id=" + in.ID} }

// ProcessOutputInput is the input of process.output.
type ProcessOutputInput struct {
	ID     string `json:"id" tool:"required,min=1,max=64" doc:"of the process: run_…"`
	Stdout int64  `json:"stdout" tool:"default=-16384,min=-1048576,max=1099511627776" doc:"where to begin in standard output, in bytes; negative: so many before its end"`
	Stderr int64  `json:"stderr" tool:"default=-16384,min=-1048576,max=1099511627776" doc:"where to begin in standard error, likewise"`
	Limit  int64  `json:"limit" tool:"default=65536,min=1,max=262144" doc:"how many bytes of each to return at most"`
}

// Brief names the process and the part to read.
func (in *ProcessOutputInput) Brief() []string {
	return []string{"id=" + in.ID, "stdout=" + strconv.FormatInt(in.Stdout, 10), "stderr=" + strconv.FormatInt(in.Stderr, 10),
		"limit=" + strconv.FormatInt(in.Limit, 10)}
}

// The states of a process.
const (
	ProcessWaiting = "waiting_approval" // a person is asked about it
	ProcessRunning = "running"          // or about to start
	ProcessEnded   = "ended"
)

// Process is a process in the background, the run of one call. It's the result of process.status,
// and of process.stop: how it was when that was asked for.
type Process struct {
	ID      string `json:"id"`
	Session string `json:"session"`
	State   string `json:"state"`
	Command string `json:"command"` // its arguments, cut

	Outcome string     `json:"outcome,omitempty"` // as that of any call, once it has ended
	Exit    int        `json:"exit"`
	Reason  string     `json:"reason,omitempty"` // code; why it ended
	Stdout  int64      `json:"stdout"`           // bytes kept so far
	Stderr  int64      `json:"stderr"`
	Output  int64      `json:"output"` // the most bytes that are kept of both
	Started *time.Time `json:"started,omitempty"`
	Ended   *time.Time `json:"ended,omitempty"`
	Receipt *uint64    `json:"receipt,omitempty"` // index in the journal, once it has ended
}

// ProcessListResult is the result of process.list: those that haven't ended.
type ProcessListResult struct {
	Processes []Process `json:"processes"`
}

// ProcessOutputResult is the result of process.output.
type ProcessOutputResult struct {
	Process Process       `json:"process"`
	Stdout  ProcessStream `json:"stdout"`
	Stderr  ProcessStream `json:"stderr"`
}

// ProcessStream is a part of a stream.
type ProcessStream struct {
	Offset  int64   `json:"offset"`         // where it begins
	Next    int64   `json:"next"`           // where the next part begins
	Lost    string  `json:"lost,omitempty"` // why the rest can't be had, as a code
	Content Content `json:"content"`
}
