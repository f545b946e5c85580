// Package builtin holds the built-in tools as palyra-tool runs them, inside a
// cell, in a workspace whose content is hostile.
//
// [Env.Main] is the whole program: it takes the name of a tool and its brief, an
// input on standard input, and writes one line of JSON; see package toolproto for
// the form. One file holds one tool. None of them executes anything, opens a
// socket, follows a link out of the workspace or reads a file that is not
// regular; package tree is the only way to a file.
//
// # Limits
//
// Everything that grows has a bound in the input, in package toolproto or here.
// A result holds at most maxOutput bytes of names and lines. Behind all of that
// stand the limits of the cell.
//
// What it does not protect against: being wrong about a workspace that changes
// while it is read. Each file is read in one pass from one descriptor; a listing
// or a search is no snapshot.
package builtin

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"palyra/cmd/palyra-tool/internal/tree"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

// Env is where a tool runs.
type Env struct {
	Dir    string // folder of the workspace; palyra-tool starts in it
	Stdin  io.Reader
	Stdout io.Writer

	// TestOnlyStep is called at each named step of a change, so that a test can
	// kill the process there, or make the step fail.
	TestOnlyStep func(name string) error
}

// maxOutput bounds names and lines in a result, in bytes before JSON.
const maxOutput = 4 << 20

// maxPayload bounds what follows an input.
const maxPayload = 1 << 20

// partial is a change that failed half-way.
type partial struct {
	err  error
	left []toolproto.Left
}

func (p *partial) Error() string { return p.err.Error() }
func (p *partial) Unwrap() error { return p.err }

// Main runs one tool and returns the exit status.
func (e *Env) Main(args []string) toolproto.Status {
	result, err := e.run(args)
	status := toolproto.Done
	if err != nil {
		status, result = failed(err)
	}
	line, err := toolproto.Encode(result)
	if err == nil {
		_, err = e.Stdout.Write(line)
	}
	if err != nil {
		return toolproto.Broken // nobody listens
	}
	return status
}

// failed says what an error means to the caller.
func failed(err error) (toolproto.Status, toolproto.Failure) {
	f := toolproto.Failure{Error: reason(err)}
	if p, ok := errors.AsType[*partial](err); ok {
		f.Left = p.left
		return toolproto.Partial, f
	}
	switch fault.KindOf(err) {
	case fault.Usage:
		return toolproto.Bad, f
	case fault.Busy:
		return toolproto.Conflict, f
	case fault.Internal:
		return toolproto.Broken, f
	}
	return toolproto.Failed, f
}

func reason(err error) toolproto.Reason {
	code := fault.ReasonOf(err)
	if code == "" {
		code = "internal"
	}
	return toolproto.Reason{Reason: code, Text: strings.ToValidUTF8(err.Error(), "\uFFFD")}
}

// run decodes the input and calls the tool.
func (e *Env) run(args []string) (any, error) {
	if len(args) == 0 {
		return nil, fault.New(fault.Usage, "no_tool", "start palyra-tool", errors.New("no tool named"))
	}
	data, err := io.ReadAll(io.LimitReader(e.Stdin, toolproto.MaxInput+maxPayload+1))
	if err != nil {
		return nil, fault.New(fault.Internal, "stdin", "read input", err)
	}
	name, brief := args[0], args[1:]
	line, payload, _ := bytes.Cut(data, []byte("\n"))
	if name == toolproto.ArtifactRead {
		in := new(toolproto.ArtifactReadInput)
		if err := decode(line, in, brief, in.Brief); err != nil {
			return nil, err
		}
		return artifactRead(in, payload)
	}
	if len(payload) > 0 {
		line = data // and let the decoder say what follows
	}
	switch name {
	case toolproto.Echo:
		in := new(toolproto.EchoInput)
		if err := decode(line, in, brief, nil); err != nil {
			return nil, err
		}
		return toolproto.EchoResult{Text: in.Text}, nil
	case toolproto.Sleep:
		in := new(toolproto.SleepInput)
		if err := decode(line, in, brief, in.Brief); err != nil {
			return nil, err
		}
		start := time.Now()
		time.Sleep(time.Duration(in.MS) * time.Millisecond)
		return toolproto.SleepResult{SleptMS: time.Since(start).Milliseconds()}, nil
	case toolproto.ReadFile:
		in := new(toolproto.ReadFileInput)
		return beneath(e, line, in, brief, in.Brief, func(t *tree.Tree) (any, error) { return readFile(t, in) })
	case toolproto.ListDir:
		in := new(toolproto.ListDirInput)
		return beneath(e, line, in, brief, in.Brief, func(t *tree.Tree) (any, error) { return listDir(t, in) })
	case toolproto.Search:
		in := new(toolproto.SearchInput)
		return beneath(e, line, in, brief, in.Brief, func(t *tree.Tree) (any, error) { return search(t, in) })
	case toolproto.WriteFile:
		in := new(toolproto.WriteFileInput)
		return beneath(e, line, in, brief, in.Brief, func(t *tree.Tree) (any, error) { return e.writeFile(t, in) })
	case toolproto.ApplyPatch:
		in := new(toolproto.ApplyPatchInput)
		// Its brief needs the patch to be read, which applyPatch does.
		return beneath(e, line, in, nil, nil, func(t *tree.Tree) (any, error) { return e.applyPatch(t, in, brief) })
	}
	return nil, fault.New(fault.Usage, "unknown_tool", fmt.Sprintf("start tool %q", name), nil)
}

// decode reads an input and holds the brief to it.
func decode(line []byte, in any, brief []string, want func() []string) error {
	if err := toolproto.DecodeInner(line, in); err != nil {
		return err
	}
	var lines []string
	if want != nil {
		lines = want()
	}
	return checkBrief(brief, lines)
}

func checkBrief(got, want []string) error {
	if !slices.Equal(got, want) {
		return fault.New(fault.Usage, "brief", "check arguments", errors.New("they do not belong to this input"))
	}
	return nil
}

// beneath decodes an input and opens the workspace for the tool.
func beneath(e *Env, line []byte, in any, brief []string, want func() []string, do func(*tree.Tree) (any, error)) (any, error) {
	if err := decode(line, in, brief, want); err != nil {
		return nil, err
	}
	t, err := tree.Open(e.Dir)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	return do(t)
}

func (e *Env) step(name string) error {
	if e.TestOnlyStep == nil {
		return nil
	}
	return e.TestOnlyStep(name)
}

// name returns the path that an input spells; its Check has read it before.
func name(spelled string) string {
	n, err := toolproto.ParsePath(spelled)
	if err != nil {
		panic("builtin: internal error: an unchecked path")
	}
	return n
}
