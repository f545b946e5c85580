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
// Everything that grows has a bound in the input, in package toolproto or here. A result
// holds at most maxOutput bytes of names and lines. The limits of the cell stand behind all
// of these.
//
// The package doesn't protect against a workspace that changes while a tool reads it. A
// tool reads each file in one pass from one descriptor; a listing or a search is no
// snapshot.
package builtin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"palyra/cmd/palyra-tool/internal/apply"
	"palyra/cmd/palyra-tool/internal/tree"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/internal/tools"
)

// Env is the environment of a tool.
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

// maxPayload bounds the payload behind an input: a change list and its content.
const maxPayload = 2*toolproto.MaxApplied + 2

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
	} else if r, ok := result.(*toolproto.ChangesResult); ok && !r.Applied {
		status = toolproto.Undone
	}
	line, err := toolproto.Encode(result)
	if err == nil {
		_, err = e.Stdout.Write(line)
	}
	if err != nil {
		return toolproto.Broken // no reader is left
	}
	return status
}

// failed turns an error into the caller's failure.
func failed(err error) (toolproto.Status, toolproto.Failure) {
	status, f := toolproto.Fail(err)
	if p, ok := errors.AsType[*partial](err); ok {
		f.Left = p.left
		return toolproto.Partial, f
	}
	if p, ok := errors.AsType[*apply.Failed](err); ok {
		f.Left = p.Left
		return toolproto.Partial, f
	}
	return status, f
}

// act does a tool's work with a decoded input and its payload.
type act func(e *Env, in any, payload []byte) (any, error)

// acts has one for each row of package tools; a test holds the two equal.
var acts = map[string]act{
	toolproto.Echo: alone(func(in *toolproto.EchoInput, _ []byte) (any, error) { return toolproto.EchoResult{Text: in.Text}, nil }),
	toolproto.Sleep: alone(func(in *toolproto.SleepInput, _ []byte) (any, error) {
		start := time.Now()
		time.Sleep(time.Duration(in.MS) * time.Millisecond)
		return toolproto.SleepResult{SleptMS: time.Since(start).Milliseconds()}, nil
	}),
	toolproto.ReadFile:     beneath(readFile),
	toolproto.ListDir:      beneath(listDir),
	toolproto.Search:       beneath(search),
	toolproto.WriteFile:    changing((*Env).writeFile),
	toolproto.ApplyPatch:   changing((*Env).applyPatch),
	toolproto.ArtifactRead: alone(artifactRead),

	// The kernel works on the vault; the words were compared with the input before.
	toolproto.VaultGet:    alone(confirmed[toolproto.VaultGetInput]),
	toolproto.VaultList:   alone(confirmed[toolproto.VaultListInput]),
	toolproto.VaultSet:    alone(confirmed[toolproto.VaultSetInput]),
	toolproto.VaultRemove: alone(confirmed[toolproto.VaultRemoveInput]),
	toolproto.VaultRotate: alone(confirmed[toolproto.VaultRotateInput]),

	toolproto.VaultImport:       alone(confirmed[toolproto.VaultImportInput]),
	toolproto.VaultExport:       alone(confirmed[toolproto.VaultExportInput]),
	toolproto.VaultAddRecipient: alone(confirmed[toolproto.VaultAddRecipientInput]),

	toolproto.ChangesApply:   applying((*apply.Job).Apply, false),
	toolproto.ChangesUndo:    applying((*apply.Job).Apply, false),
	toolproto.ChangesRecover: applying((*apply.Job).Recover, true),

	toolproto.MemorySearch: told[toolproto.MemorySearchInput, toolproto.MemoryResult](),
	toolproto.MemoryList:   told[toolproto.MemoryListInput, toolproto.MemoryResult](),
	toolproto.MemoryRetain: told[toolproto.MemoryRetainInput, toolproto.MemoryResult](),
	toolproto.MemoryForget: told[toolproto.MemoryForgetInput, toolproto.MemoryResult](),

	toolproto.ProcessList:   told[toolproto.ProcessListInput, toolproto.ProcessListResult](),
	toolproto.ProcessStatus: told[toolproto.ProcessStatusInput, toolproto.Process](),
	toolproto.ProcessOutput: told[toolproto.ProcessOutputInput, toolproto.ProcessOutputResult](),
	toolproto.ProcessStop:   told[toolproto.ProcessStopInput, toolproto.Process](),
}

// told is a tool whose result is its payload.
func told[I, R any]() act {
	return alone(func(_ *I, payload []byte) (any, error) {
		r := new(R)
		d := json.NewDecoder(bytes.NewReader(payload))
		d.DisallowUnknownFields()
		if err := d.Decode(r); err != nil {
			return nil, fault.New(fault.Usage, "invalid_input", "read payload", err)
		}
		return r, nil
	})
}

// applying is a tool that brings a change list to a workspace, or ends that.
func applying(do func(j *apply.Job, dir string) (*toolproto.ChangesResult, error), recovers bool) act {
	return func(e *Env, in any, payload []byte) (any, error) {
		j, err := apply.Read(in.(*toolproto.ChangesInput), payload, recovers, e.TestOnlyStep)
		if err != nil {
			return nil, err
		}
		r, err := do(j, e.Dir)
		if err != nil {
			return nil, err
		}
		return r, nil
	}
}

func confirmed[I any](*I, []byte) (any, error) { return toolproto.VaultResult{Done: true}, nil }

// alone is a tool without a workspace.
func alone[I any](do func(in *I, payload []byte) (any, error)) act {
	return func(_ *Env, in any, payload []byte) (any, error) { return do(in.(*I), payload) }
}

// beneath is a tool that reads a workspace.
func beneath[I any](do func(t *tree.Tree, in *I) (any, error)) act {
	return changing(func(_ *Env, t *tree.Tree, in *I) (any, error) { return do(t, in) })
}

// changing is a tool that changes a workspace.
func changing[I any](do func(e *Env, t *tree.Tree, in *I) (any, error)) act {
	return func(e *Env, in any, _ []byte) (any, error) {
		t, err := tree.Open(e.Dir)
		if err != nil {
			return nil, err
		}
		defer t.Close()
		return do(e, t, in.(*I))
	}
}

// run reads the call and calls the tool.
func (e *Env) run(args []string) (any, error) {
	t, in, payload, err := tools.Read(args, e.Stdin, maxPayload)
	if err != nil {
		return nil, err
	}
	do, ok := acts[t.Name]
	if !ok {
		return nil, fault.New(fault.Usage, "not_found", fmt.Sprintf("start tool %q", t.Name), errors.New("another program runs it"))
	}
	return do(e, in, payload)
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
