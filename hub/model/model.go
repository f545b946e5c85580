// Package model has the language models that the operator declared, and makes a turn of one a call
// like any other.
//
//	m, err := model.New(model.Config{Tools: table, Models: cfg.Models, Fetch: fetch, Memory: sealed})
//	k, err := kernel.Open(ctx, kernel.Config{Tools: m, …})
//
// # How a model is asked
//
// A caller names a model and a question: the tool model.turn (package palyra/agentloop/turn). Its
// program is palyra-fetch, in a cell that leads to the host of the model's url alone. What is asked
// is its standard input, sealed into the capsule. Caller and question choose neither host nor key:
//
//	{"model": "main", "request": {"messages": […]}}
//	{"model": "main", "digest": "sha256:…"}
//
// The second names a question that is at hand ([Models.Keep]): a tape needn't hold a conversation
// again for each turn. It is also the way for questions of more than a run's input may have.
//
// A model that makes embeddings is asked in the same way, for the vectors of texts:
//
//	{"model": "vectors", "request": {"embed": {"input": ["a text"]}}}
//
// # Contract
//
// A question has no script and, where the model bounds its answers, asks for no longer one. The key
// is a use of a secret of the vault: palyra-egress puts it into requests behind the url, over TLS,
// and the program has a placeholder. A question at hand is found by the principal for which it is
// kept, and counted as its memory.
//
// # What it does not protect against
//
// The provider, which reads all that it's asked, and answers as it likes: see package turn.
package model

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"palyra/agentloop"
	"palyra/agentloop/turn"
	"palyra/authz/policy"
	"palyra/call/egress/target"
	"palyra/hub/config"
	"palyra/internal/budget"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/tier"
	"palyra/kernel"
)

// Config says what to make Models of.
type Config struct {
	// Tools is the table of all other tools.
	Tools kernel.Tools
	// Models are the models, by name. Make them with package config, which checks them.
	Models map[string]config.Model
	// Default is the name of the model that is asked where none is named. Default: the only one that
	// has turns.
	Default string
	// Fetch is the absolute path of palyra-fetch. Default: none, and no model can be asked.
	Fetch string
	// Egress says that calls can reach hosts. Default: they can't, and scripted models alone are
	// asked.
	Egress bool
	// Workspaces are the names of those that there are. The built-in script looks into the first.
	Workspaces []string
	// Memory counts the questions at hand, in bytes. Default: no bound.
	Memory *budget.Pool
}

// Models has the models. It is safe for concurrent use.
type Models struct {
	cfg     Config
	scripts map[string]json.RawMessage // of scripted models, by name. Immutable after New

	mu   sync.Mutex
	kept map[question]*held // guarded by mu
}

// question is one that is at hand.
type question struct {
	user   string
	digest canon.Digest
}

// held is a question that was kept n times and released less often.
type held struct {
	text []byte
	n    int
	hold *budget.Hold
}

var _ kernel.Tools = (*Models)(nil)

//go:embed script.json
var builtIn string

// alone is the built-in script where there is no workspace to look at.
const alone = `{"turns":[{"text":"I'm a script, and there is no workspace that I could look at: [workspaces.NAME] of palyrad.toml declares one."}]}`

// New returns Models. It reads the files of scripts.
func New(cfg Config) (*Models, error) {
	m := &Models{cfg: cfg, scripts: make(map[string]json.RawMessage), kept: make(map[question]*held)}
	if cfg.Default == "" {
		var turns []string
		for name, one := range cfg.Models {
			if !one.Embeds() {
				turns = append(turns, name)
			}
		}
		if len(turns) == 1 {
			m.cfg.Default = turns[0]
		}
	}
	for name, one := range cfg.Models {
		if one.Provider != turn.Scripted || one.Embeds() {
			continue
		}
		text := []byte(alone)
		op := fmt.Sprintf("read script of model %q", name)
		if one.Script != "" {
			var err error
			if text, err = readScript(one.Script); err != nil {
				return nil, fault.New(fault.BadState, "bad_file", op, err)
			}
		} else if len(cfg.Workspaces) > 0 {
			text = []byte(strings.ReplaceAll(builtIn, "{{workspace}}", cfg.Workspaces[0]))
		}
		var s turn.Script
		if err := canon.Decode(text, &s, canon.Limits{Bytes: maxScript}); err != nil {
			return nil, fault.New(fault.BadState, "bad_file", op, err)
		}
		b, err := canon.Marshal(s)
		if err != nil {
			return nil, fault.New(fault.BadState, "bad_file", op, err)
		}
		m.scripts[name] = b
	}
	return m, nil
}

// maxScript bounds a script, in bytes: it goes with each question.
const maxScript = 1 << 20

func readScript(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxScript+1))
}

// Names returns the names of the models, sorted.
func (m *Models) Names() []string { return slices.Sorted(maps.Keys(m.cfg.Models)) }

// Default returns the name of the model that is asked where none is named, "" if there is none.
func (m *Models) Default() string { return m.cfg.Default }

// Fallback returns the names of the models that are asked where one fails, in order.
func (m *Models) Fallback(name string) (names []string) {
	for next := m.cfg.Models[name].Fallback; next != ""; next = m.cfg.Models[next].Fallback {
		names = append(names, next)
	}
	return names
}

// Model returns a declared model.
func (m *Models) Model(name string) (config.Model, error) {
	one, ok := m.cfg.Models[name]
	if !ok {
		return one, fault.New(fault.Usage, "not_found", fmt.Sprintf("ask model %.80q", name), errors.New("the operator declared none of this name")).WithHint(fault.Lists("model"))
	}
	if one.Model == "" {
		one.Model = name
	}
	return one, nil
}

// Usable returns why a model can't be asked now, as far as that is known without its key.
func (m *Models) Usable(name string) error {
	one, err := m.Model(name)
	op := fmt.Sprintf("ask model %q", name)
	switch {
	case err != nil:
		return err
	case m.cfg.Fetch == "":
		return fault.New(fault.Refused, "helper_unusable", op, errors.New("there is no palyra-fetch beside palyra-tool, and it's the program that asks models"))
	case one.Provider != turn.Scripted && !m.cfg.Egress:
		return fault.New(fault.Refused, "egress_lost", op, errors.New("no call reaches hosts here")).WithHint("egress.enabled of palyrad.toml: docs/EGRESS.md")
	}
	return nil
}

// Keep keeps a question at hand for its owner, until release is called, and returns its name. Kept
// twice, it is held once.
func (m *Models) Keep(owner budget.Owner, request []byte) (d canon.Digest, release func(), err error) {
	if _, err := turn.ParseRequest(request); err != nil {
		return d, nil, err
	}
	d = canon.Sum(request)
	at := question{owner.Name, d}
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.kept[at]
	if h == nil {
		h = new(held)
		if m.cfg.Memory != nil {
			if h.hold, err = m.cfg.Memory.Take(owner, int64(len(request))); err != nil {
				return canon.Digest{}, nil, err
			}
		}
		h.text = slices.Clone(request)
		m.kept[at] = h
	}
	h.n++
	return d, sync.OnceFunc(func() { m.release(at) }), nil
}

func (m *Models) release(at question) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.kept[at]
	if h.n--; h.n == 0 {
		delete(m.kept, at)
		h.hold.Release()
	}
}

// at returns a question that is at hand.
func (m *Models) at(user string, d canon.Digest) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.kept[question{user, d}]
	if h == nil {
		return nil, fault.New(fault.Usage, "not_found", "find question to model", fmt.Errorf("%s isn't at hand", d)).
			WithHint("the run that asks keeps it there; name a question of your own in request")
	}
	return h.text, nil
}

// turnInput is the input of model.turn.
type turnInput struct {
	Model   string          `json:"model"`
	Request json.RawMessage `json:"request,omitempty"`
	Digest  canon.Digest    `json:"digest,omitzero"`
}

// Turn implements run.Meter: it returns the declared model that an input of model.turn names, the
// bytes of the question if it's there or at hand, and what each token costs. Expand says what is
// wrong with an input.
func (m *Models) Turn(user string, input []byte) (name string, bytes int64, price agentloop.Price, ok bool) {
	var in turnInput
	if json.Unmarshal(input, &in) != nil {
		return "", 0, price, false
	}
	one, err := m.Model(in.Model)
	if err != nil {
		return "", 0, price, false
	}
	text := []byte(in.Request)
	if text == nil {
		text, _ = m.at(user, in.Digest)
	}
	return in.Model, int64(len(text)), agentloop.Price{Input: one.Input, Cached: one.Cached, Output: one.Output}, true
}

// Input is the input of a call that asks a model what is at hand.
func Input(name string, d canon.Digest) (json.RawMessage, error) {
	return canon.Marshal(turnInput{Model: name, Digest: d})
}

// Expand implements kernel.Tools.
func (m *Models) Expand(ctx context.Context, who policy.Entity, name string, input []byte) (*kernel.Expansion, error) {
	if name != turn.Tool {
		return m.cfg.Tools.Expand(ctx, who, name, input)
	}
	var in turnInput
	if err := canon.Decode(input, &in, canon.Limits{Bytes: 1 << 20, Depth: 66}); err != nil {
		return nil, err
	}
	op := fmt.Sprintf("ask model %.80q", in.Model)
	one, err := m.Model(in.Model)
	if err == nil {
		err = m.Usable(in.Model)
	}
	if err != nil {
		return nil, err
	}
	text := []byte(in.Request)
	if (in.Request == nil) == in.Digest.IsZero() {
		return nil, fault.New(fault.Usage, "invalid_input", op, errors.New("want either a request or the digest of one"))
	}
	if in.Request == nil {
		if text, err = m.at(who.ID, in.Digest); err != nil {
			return nil, err
		}
	}
	r, err := turn.ParseRequest(text)
	if err != nil {
		return nil, err
	}
	switch {
	case one.Embeds() && r.Embed == nil:
		return nil, fault.New(fault.Usage, "invalid_input", op, errors.New("it makes vectors of texts: want embed"))
	case r.Embed != nil && !one.Embeds():
		return nil, fault.New(fault.Usage, "invalid_input", op, errors.New("it has turns, and makes no embeddings")).WithHint(`kind = "embeddings" of [models.NAME] declares one that does`)
	case r.Script != nil:
		return nil, fault.New(fault.Usage, "invalid_input", op, errors.New("a script is the operator's to name"))
	case r.MaxTokens < 0:
		return nil, fault.New(fault.Usage, "invalid_input", op, errors.New("max_tokens is less than 0"))
	case r.Embed == nil && one.MaxTokens > 0 && (r.MaxTokens == 0 || r.MaxTokens > one.MaxTokens):
		r.MaxTokens = one.MaxTokens
	}
	if err := r.Fits(one.Provider); err != nil {
		return nil, err
	}
	r.Script = m.scripts[in.Model]
	stdin, err := r.Encode()
	if err != nil {
		return nil, err
	}
	x, err := m.program(&one)
	if err != nil {
		return nil, err
	}
	x.Stdin, x.StdinMost = stdin, turn.MaxRequest
	return x, nil
}

// limits are those of a turn. A model may think for minutes before its first word, and palyra-fetch
// ends one that is quiet for longer, which the answer says; the wall is for one that never comes to
// an end. A Go program needs a dozen threads to start; question and answer lie in its memory
// several times.
func limits() isolate.Limits {
	return isolate.Limits{Wall: 10 * time.Minute, CPU: time.Minute, Memory: 256 << 20, PIDs: 64, Output: turn.MaxAnswer + maxErrors,
		FileSize: 1 << 20, OpenFiles: 256, Disk: 1 << 20, Inodes: 64}
}

// maxErrors is what the program may say on its standard error.
const maxErrors = 64 << 10

// program describes the program that asks a model, and what it reaches.
func (m *Models) program(one *config.Model) (*kernel.Expansion, error) {
	x := &kernel.Expansion{LeaveOperands: true, TierFloor: tier.C, Limits: limits()}
	if one.Provider == turn.Scripted {
		x.Argv = []string{m.cfg.Fetch, turn.Tool, one.Provider, "-", one.Model}
		x.Network = isolate.NetworkVoid
		return x, nil
	}
	at, err := target.Parse(one.URL)
	if err != nil {
		return nil, err
	}
	x.Argv = []string{m.cfg.Fetch, turn.Tool, one.Provider, strings.TrimRight(at.String(), "/"), one.Model}
	x.EgressHosts = []string{at.Rule().String()}
	if one.Network != "" {
		x.EgressHosts = append(x.EgressHosts, one.Network)
		x.EgressNetworks = !at.TLS() // in the clear it's for that network alone
	}
	if one.Key != "" {
		x.EgressSecrets, x.EgressEarly = []string{one.Use()}, true
		x.Argv = append(x.Argv, "secret:"+one.Place()+"="+config.ModelKey)
	}
	return x, nil
}
