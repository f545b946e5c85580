package run

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// The bounds of a Request.
const (
	MaxSteps = 256
	MaxInput = 1 << 20 // bytes of one step's input
	maxPlan  = 4 << 20 // bytes of all inputs
	MaxKey   = 128     // bytes of an idempotency key
)

// Request is a run as somebody wants to have it.
type Request struct {
	Session   string // of the same user; "": one of its own, which ends with it
	User      string // principal, as the surface authenticated it
	Surface   string
	Device    string
	Token     string // id of the token that was shown, "" for none
	Reserve   bool   // may use what budgets keep for the installation's owner
	Steps     []hub.Step
	Agent     *hub.Agent // instead of steps: it chooses them
	Budget    hub.Budget
	KeepGoing bool
	Staged    bool   // workspaces are staged, also those that the operator didn't declare so
	Parallel  bool   // may be made beside others of its session that may, too
	Key       string // idempotency key; "" is none
	// Attended says that somebody waits for it and nobody else wants to know: it
	// is not made any more after a restart.
	Attended bool
	// Unasked says that no person is asked about its calls: one that needs a yes is denied. It isn't
	// kept, so such a run is Attended.
	Unasked bool
	// Wrote is the session that wrote what the calls are about to use. Its label is in that of the
	// run's session from the beginning. "": none.
	Wrote string
	// Origins are where the text in the steps came from besides: likewise.
	Origins []string

	Metadata map[string]string // the caller's own
	// Beside puts what comes beside the calls into their ctx. It isn't kept: a run that goes on
	// after a restart goes on without. nil: nothing does.
	Beside func(ctx context.Context) context.Context
	// Stdout gets what the calls write to standard output, which is kept nowhere then. It's the run's
	// until that has ended, and isn't kept itself, so such a run is Attended. nil: what they write is
	// kept.
	Stdout *bytes.Buffer
	// Spends is the session of the same user that turns of models are counted of and bounded by.
	// "": the run's.
	Spends string
}

// plan is what is kept of a Request, as JSON in the run's row.
type plan struct {
	Digest    canon.Digest `json:"digest"` // of what makes two requests the same
	Surface   string       `json:"surface"`
	Device    string       `json:"device,omitempty"`
	Token     string       `json:"token,omitempty"`
	Reserve   bool         `json:"reserve,omitempty"`
	Steps     []hub.Step   `json:"steps"`
	Agent     *hub.Agent   `json:"agent,omitempty"`
	KeepGoing bool         `json:"keep_going,omitempty"`
	Staged    bool         `json:"staged,omitempty"`
	Parallel  bool         `json:"parallel,omitempty"`
	// Background says that it is a run in the background, which is parallel, too: the store knows
	// of no other runs that are at work beside each other.
	Background bool `json:"background,omitempty"`
	Attended   bool `json:"attended,omitempty"`
	Ephemeral  bool `json:"ephemeral,omitempty"` // the session is the run's own

	Spends string `json:"spends,omitempty"`

	Metadata map[string]string `json:"metadata,omitempty"`
}

// spends returns the session that turns of models are counted of.
func (p *plan) spends(session string) string { return cmp.Or(p.Spends, session) }

// check refuses what cannot be made and spells inputs in one way.
func (q *Request) check() (*plan, error) {
	const op = "start run"
	bad := func(reason, format string, a ...any) (*plan, error) {
		return nil, fault.New(fault.Usage, reason, op, fmt.Errorf(format, a...))
	}
	switch {
	case (q.Unasked || q.Stdout != nil) && (!q.Attended || q.Key != ""):
		return nil, fault.New(fault.Internal, "internal", op, errors.New("a run that no person is asked about, or whose output isn't kept, would go on after a restart"))
	case q.User == "":
		return nil, fault.New(fault.Denied, "not_a_member", op, errors.New("the request names no user"))
	case len(q.Steps) == 0 && q.Agent == nil:
		return bad("invalid_input", "a run has at least one step, or an agent")
	case len(q.Steps) > 0 && q.Agent != nil:
		return bad("invalid_input", "an agent chooses the steps of its run: leave them out")
	case q.Agent != nil && checkAgent(q.Agent) != nil:
		return bad("invalid_input", "%w", checkAgent(q.Agent))
	case len(q.Steps) > MaxSteps:
		return bad("too_large", "%d steps, the limit is %d", len(q.Steps), MaxSteps)
	case len(q.Key) > MaxKey || !printable(q.Key):
		return bad("invalid_input", "a key is at most %d printable ASCII characters", MaxKey)
	case q.Budget.Calls < 0 || q.Budget.Wall < 0 || q.Budget.Bytes < 0:
		return bad("invalid_input", "a bound is negative")
	case !metadata(q.Metadata):
		return bad("invalid_input", "%w", errMetadata)
	}
	p := &plan{Surface: q.Surface, Device: q.Device, Token: q.Token, Reserve: q.Reserve, KeepGoing: q.KeepGoing, Staged: q.Staged, Parallel: q.Parallel, Attended: q.Attended && q.Key == "", Ephemeral: q.Session == "", Agent: q.Agent, Metadata: q.Metadata, Spends: q.Spends}
	var err error
	if p.Background, err = q.checkBackground(); err != nil {
		return nil, err
	}
	p.Parallel = p.Parallel || p.Background
	total := 0
	for i, s := range q.Steps {
		if s, err = plain(s, i); err != nil {
			return nil, err
		}
		if total += len(s.Input); total > maxPlan {
			return bad("too_large", "inputs of more than %d bytes", maxPlan)
		}
		p.Steps = append(p.Steps, s)
	}
	if p.Digest, err = q.digest(p.Steps); err != nil {
		return nil, fault.New(fault.Internal, "internal", op, err)
	}
	return p, nil
}

var errMetadata = fmt.Errorf("metadata are at most %d texts in UTF-8 of %d bytes, with names of 1 to %d", hub.MaxMetadata, hub.MaxMetadataValue, hub.MaxMetadataName)

// metadata reports whether a run can have these.
func metadata(m map[string]string) bool {
	for name, value := range m {
		if name == "" || len(name) > hub.MaxMetadataName || len(value) > hub.MaxMetadataValue || !utf8.ValidString(name) || !utf8.ValidString(value) {
			return false
		}
	}
	return len(m) <= hub.MaxMetadata
}

// checkNoted refuses metadata with the value of a secret that was given to a user.
func (e *Engine) checkNoted(user string, m map[string]string) error {
	for name, value := range m {
		if e.cfg.HoldsSecret != nil && (e.cfg.HoldsSecret(user, []byte(name)) || e.cfg.HoldsSecret(user, []byte(value))) {
			return fault.New(fault.Usage, "secret_in_call", "keep metadata", errors.New("a name or value of it has the value of a secret"))
		}
	}
	return nil
}

// SetMetadata replaces the metadata of a run, also of one that has ended. The caller checks who
// may.
func (e *Engine) SetMetadata(ctx context.Context, id string, m map[string]string) error {
	if !metadata(m) {
		return fault.New(fault.Usage, "invalid_input", "put metadata", errMetadata)
	}
	return e.store.Update(ctx, func(tx *store.Tx) error {
		r, err := tx.Run(id)
		if err != nil {
			return err
		}
		if err := e.checkNoted(r.Principal, m); err != nil {
			return err
		}
		p, err := planOf(r)
		if err != nil {
			return err
		}
		p.Metadata = m
		text, err := p.encode()
		if err != nil {
			return fault.New(fault.Internal, "internal", "put metadata", err)
		}
		return tx.SetPlan(id, text)
	})
}

// plain refuses a step that can't be one, and spells its input in one way.
func plain(s hub.Step, i int) (hub.Step, error) {
	bad := func(format string, a ...any) (hub.Step, error) {
		return s, fault.New(fault.Usage, "invalid_input", "start run", fmt.Errorf("step %d: %w", i, fmt.Errorf(format, a...)))
	}
	if s.Tool == "" || len(s.Tool) > 128 || !printable(s.Tool) {
		return bad("a tool is named with 1 to 128 printable ASCII characters")
	}
	if len(s.Input) == 0 {
		s.Input = json.RawMessage("{}")
	}
	var b bytes.Buffer
	if len(s.Input) > MaxInput || json.Compact(&b, s.Input) != nil || b.Bytes()[0] != '{' {
		return bad("an input is one JSON object of at most %d bytes", MaxInput)
	}
	s.Input = b.Bytes()
	return s, nil
}

// digest hashes the JSON, with json.Marshal's escapes, of what makes two requests the same. It
// writes the inputs in pieces: an escaped copy is up to six times as long, and no budget counts
// it.
func (q *Request) digest(steps []hub.Step) (d canon.Digest, err error) {
	h := sha256.New()
	var piece bytes.Buffer
	put := func(v any) {
		b, merr := json.Marshal(v)
		err = errors.Join(err, merr)
		h.Write(b)
	}
	io.WriteString(h, `{"Session":`)
	put(q.Session)
	if q.Agent != nil {
		io.WriteString(h, `,"Agent":`)
		put(q.Agent)
		io.WriteString(h, `,"Steps":[`)
	}
	for i, s := range steps { // at least one
		before := ","
		if i == 0 {
			before = `,"Steps":[`
		}
		io.WriteString(h, before+`{"tool":`)
		put(s.Tool)
		io.WriteString(h, `,"input":`)
		for in, n := []byte(s.Input), 0; len(in) > 0; in = in[n:] {
			n = min(len(in), digestPiece)
			for n < len(in) && !utf8.RuneStart(in[n]) {
				n++
			}
			piece.Reset()
			json.HTMLEscape(&piece, in[:n])
			h.Write(piece.Bytes())
		}
		io.WriteString(h, "}")
	}
	io.WriteString(h, `],"Budget":`)
	put(q.Budget)
	io.WriteString(h, `,"KeepGoing":`)
	put(q.KeepGoing)
	if q.Staged {
		io.WriteString(h, `,"Staged":true`)
	}
	if q.Parallel {
		io.WriteString(h, `,"Parallel":true`)
	}
	if len(q.Metadata) > 0 {
		io.WriteString(h, `,"Metadata":`)
		put(q.Metadata)
	}
	io.WriteString(h, "}")
	return canon.Digest(h.Sum(nil)), err
}

const digestPiece = 16 << 10

func printable(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// bound is a budget with the daemon's bounds laid over it.
func bound(b hub.Budget, most store.Budget) store.Budget {
	c := store.Budget{Calls: b.Calls, Wall: b.Wall, Bytes: b.Bytes}
	for _, f := range []struct {
		v    *int64
		most int64
	}{{&c.Calls, most.Calls}, {(*int64)(&c.Wall), int64(most.Wall)}, {&c.Bytes, most.Bytes}} {
		if *f.v <= 0 || *f.v > f.most {
			*f.v = f.most
		}
	}
	return c
}

func budgetOf(b store.Budget) hub.Budget {
	return hub.Budget{Calls: b.Calls, Wall: b.Wall, Bytes: b.Bytes}
}

// encode writes a plan as keeps counts it: json.Marshal makes six bytes of each "<" of an
// input.
func (p *plan) encode() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(p); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// planOf reads the plan of a row. Earlier versions stored it with escapes.
func planOf(r *store.Run) (*plan, error) {
	var p plan
	if err := json.Unmarshal(r.Plan, &p); err != nil {
		return nil, fault.New(fault.Integrity, "store_corrupt", fmt.Sprintf("read plan of run %q", r.ID), err)
	}
	for i := range p.Steps {
		p.Steps[i].Input = json.RawMessage(unescape.Replace(string(p.Steps[i].Input)))
	}
	return &p, nil
}

// unescape takes the escapes out that json.Marshal adds. Neither the meaning of JSON nor the
// digest of a plan depends on them.
var unescape = strings.NewReplacer(`\\`, `\\`, `\u003c`, "<", `\u003e`, ">", `\u0026`, "&", `\u2028`, "\u2028", `\u2029`, "\u2029")
