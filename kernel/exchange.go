package kernel

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"palyra/authz/grant"
	vocabulary "palyra/call"
	"palyra/crypt/receipt"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
)

// An exchange is a call that starts no program: it puts one question to a program that runs
// already, in a cell and with an intent of its own, and takes the answer. It is sealed, decided,
// approved, granted and recorded like every call; only its execution differs. Its capsule names
// the running program's files, arguments and workspace, so that policy and approver see what
// answers, and the question is its standard input.

// Question is the standard input of an exchange, as canonical JSON.
type Question struct {
	Server    string          `json:"server"`    // the operator's name for the program
	Tool      string          `json:"tool"`      // of the program
	Pin       canon.Digest    `json:"pin"`       // of the tool's definition that was accepted
	Arguments json.RawMessage `json:"arguments"` // an object
}

// Exchanger puts the questions of one caller to programs that run.
type Exchanger interface {
	// Exchange returns the answer to the question q, of at most most bytes, failed if the
	// program says that it failed, and which call answered. program is what ProgramOf said of
	// that call's capsule when it was sealed, or the answer is of something else than what was
	// decided. A fault.Refused error says that q was not sent. With any other error the
	// program may have acted.
	Exchange(ctx context.Context, program canon.Digest, q Question, most int64) (answer []byte, failed bool, by evidence.Exchange, err error)
}

// The bounds of what policy and receipt are told of an exchange's arguments.
const (
	maxArguments    = 64
	maxArgumentName = 128
	maxArgumentText = 256 // a longer value is named by its digest
)

// mcpOf reads the sealed question of an exchange.
func mcpOf(stdin []byte) (*vocabulary.MCP, error) {
	const op = "check question"
	var q Question
	if err := canon.Decode(stdin, &q, canon.Limits{Bytes: len(stdin), Depth: 64}); err != nil {
		return nil, err
	}
	var args map[string]json.RawMessage
	if err := json.Unmarshal(q.Arguments, &args); err != nil || args == nil {
		return nil, usage("invalid_input", op, errors.New("arguments are an object"))
	}
	if len(args) > maxArguments {
		return nil, usage("too_large", op, fmt.Errorf("%d arguments, limit %d", len(args), maxArguments))
	}
	m := &vocabulary.MCP{Server: q.Server, Tool: q.Tool, Arguments: []string{}}
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if len(name) > maxArgumentName {
			return nil, usage("too_large", op, fmt.Errorf("an argument's name of %d bytes, limit %d", len(name), maxArgumentName))
		}
		m.Arguments = append(m.Arguments, argumentName.Replace(name)+"="+argumentText(args[name]))
	}
	if err := checkText("question", append([]string{m.Server, m.Tool}, m.Arguments...)...); err != nil {
		return nil, err
	}
	return m, nil
}

// argumentText tells each value from all others: a policy that permits dry_run=true means the
// value, not the text. So a string that could be read as another value, or as a digest, stands
// as JSON.
func argumentText(value json.RawMessage) string {
	text := string(value)
	var s string
	if text[0] == '"' && json.Unmarshal(value, &s) == nil && !json.Valid([]byte(s)) && !strings.HasPrefix(s, "sha256:") {
		text = s
	}
	if len(text) > maxArgumentText {
		text = canon.Sum([]byte(text)).String()
	}
	return text
}

// argumentName keeps the first "=" of an element the one behind its name.
var argumentName = strings.NewReplacer("%", "%25", "=", "%3D")

// programOf names what a capsule says about its program: all but the tool, the standard input,
// the limits and what else may differ between a program's own call and exchanges with it.
func programOf(s *sealed) (canon.Digest, error) {
	c := *s.capsule
	c.Tool, c.Sensitive, c.Capabilities, c.Limits = "", false, nil, isolate.Limits{}
	c.Stdin.Mode, c.Stdin.Digest, c.Stdin.Size = "", canon.Digest{}, 0
	if c.Workspace != nil {
		w := *c.Workspace
		w.Layer = ""
		c.Workspace = &w
	}
	b, err := canon.Marshal(&c)
	return canon.Sum(b), err
}

// exchange is execute for an exchange. The grant is verified and spent here, as palyra-cell does
// for a program.
func (c *call) exchange(ctx context.Context, l *lane, g grant.Grant, spec *isolate.Spec, stdio IO) (string, error) {
	const op = "exchange"
	refused := func(reason string, err error) (string, error) {
		return receipt.Refused, fault.New(fault.Refused, reason, op, err)
	}
	digest, err := spec.Digest()
	if err == nil {
		err = l.spent.Verify(g, c.s.id, digest)
	}
	if err != nil {
		return refused("grant_invalid", err)
	}
	if c.who.Exchange == nil {
		return refused("server_died", errors.New("no program that could answer runs for this caller"))
	}
	program, err := programOf(c.s)
	if err != nil {
		return refused("internal", err)
	}
	b := make([]byte, c.s.capsule.Stdin.Size)
	var q Question
	if _, err = c.s.stdin.File.ReadAt(b, 0); err == nil {
		err = json.Unmarshal(b, &q)
	}
	if err != nil {
		return refused("internal", err)
	}
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, spec.Limits.Wall)
	defer cancel()
	answer, failed, by, err := c.who.Exchange.Exchange(limited, program, q, spec.Limits.Output)
	by.Basis = evidence.Reported
	by.Server, by.Tool, by.Pin = q.Server, q.Tool, q.Pin
	e := &evidence.Evidence{Executor: evidence.ExecutorExchange, Exchange: by, Exit: evidence.Exit{Code: -1}}
	e.Exit.Basis, e.Usage.Basis, e.Usage.WallNS = evidence.Reported, evidence.Reported, time.Since(began).Nanoseconds()
	res := &isolate.Result{Outcome: isolate.Exited, Evidence: e}
	switch kind := fault.KindOf(err); {
	case err == nil:
	case kind == fault.Refused:
		return receipt.Refused, err
	case kind == fault.Timeout: // the program that didn't answer has been ended
		e.Exit.LimitHit, res.Outcome = "wall", isolate.TimedOut
	default:
		c.out.Result = res
		return mayHaveRun(err)
	}
	if err == nil {
		e.Exit.Code = 0
		if failed {
			e.Exit.Code = 1
		}
	}
	answer = c.k.values(&c.who.Principal).Bytes(answer)
	if cut := int64(len(answer)) - spec.Limits.Output; cut > 0 {
		answer, e.Output.Cut = answer[:spec.Limits.Output], cut
	}
	e.Output.Basis, e.Output.StdoutBytes = evidence.Observed, int64(len(answer))
	e.Output.StdoutDigest, e.Output.StderrDigest = canon.Digest(sha256.Sum256(answer)), canon.Sum(nil)
	if stdio.Stdout != nil {
		n, werr := stdio.Stdout.Write(bytes.Clone(answer))
		c.out.Delivered = werr == nil && n == len(answer)
	}
	c.out.Result = res
	return outcomeOf(res, err)
}

// program is programOf for a call that exchanges can be with.
func (c *call) program(p *Proposal) (d canon.Digest) {
	if p.tool != nil && p.tool.Streams {
		d, _ = programOf(c.s) // without it no exchange fits
	}
	return d
}

// readQuestion reads the sealed standard input of an exchange.
func (s *sealed) readQuestion() (*vocabulary.MCP, error) {
	b := make([]byte, s.stdin.Size)
	if _, err := s.stdin.File.ReadAt(b, 0); err != nil {
		return nil, usage("bad_file", "read question", err)
	}
	return mcpOf(b)
}
