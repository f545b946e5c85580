package local

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"palyra/agentloop"
	"palyra/agentloop/turn"
	"palyra/authz/access"
	"palyra/hub"
	"palyra/hub/config"
	"palyra/hub/model"
	"palyra/hub/run"
	"palyra/hub/session"
	"palyra/internal/canon"
	"palyra/kernel"
)

// ending is a way in which an agent's run ends, and what produces it: a model of these turns, what
// the run is started with, and what becomes of it while its first call is under way.
type ending struct {
	state, reason string
	turns         []turn.ScriptTurn
	model         config.Model // the rest of its declaration
	with          func(r *hub.NewRun)
	meanwhile     func(h *house, c hub.Caller, r hub.Run) error
	// restart says how palyrad begins again while the run's first call is under way. queued says that
	// the run waits for another one then.
	restart func(c *Config, k *kernel.Config)
	queued  bool
}

// waits is a model that makes a call which lasts.
func waits() []turn.ScriptTurn {
	return []turn.ScriptTurn{calls("I wait.", sleeper), says("It's over.")}
}

// endings are all ways in which an agent's run ends.
func endings() []ending {
	fails := calls("", `process_run {"argv":["/bin/false"]}`)
	large, dear := calls("", `palyra_echo {"text":"x"}`), calls("", `palyra_echo {"text":"x"}`)
	large.Usage, dear.Usage = &turn.Usage{Input: 1_000_000}, &turn.Usage{Input: 1000}
	cut := turn.ScriptTurn{Text: "It is", End: turn.EndLength}
	written := says(`{"name": "palyra_echo", "arguments": {"text": "x"}}`)
	budget := func(b hub.Budget) func(*hub.NewRun) { return func(r *hub.NewRun) { r.Budget = b } }
	return []ending{
		{state: hub.RunDone, turns: []turn.ScriptTurn{says("Yes.")}},
		{state: hub.RunDone, turns: []turn.ScriptTurn{calls("", `get_weather {"city":"Oslo"}`)}, with: func(r *hub.NewRun) { r.Agent.Functions = weather() }},

		{state: hub.RunFailed, reason: agentloop.ReasonTurns, turns: []turn.ScriptTurn{fails, fails}, with: func(r *hub.NewRun) { r.Agent.Turns = 2 }},
		{state: hub.RunFailed, reason: agentloop.ReasonProvider, turns: []turn.ScriptTurn{{Error: &turn.Error{Class: turn.AuthInvalid, Message: "no such key", Status: 401}}}},
		{state: hub.RunFailed, reason: agentloop.ReasonProvider, turns: []turn.ScriptTurn{{Text: "No.", End: turn.EndRefused}}},
		{state: hub.RunFailed, reason: agentloop.ReasonContext, model: config.Model{Context: 1000}, turns: []turn.ScriptTurn{says("never")}},
		{state: hub.RunFailed, reason: agentloop.ReasonIncomplete, turns: []turn.ScriptTurn{says(" "), says(" ")}},
		{state: hub.RunFailed, reason: agentloop.ReasonIncomplete, turns: []turn.ScriptTurn{cut, cut}},
		{state: hub.RunFailed, reason: agentloop.ReasonIncomplete, turns: []turn.ScriptTurn{written, written}},
		{state: hub.RunFailed, reason: agentloop.ReasonFailures, turns: []turn.ScriptTurn{fails, fails, fails}},
		{state: hub.RunFailed, reason: agentloop.ReasonTokens, turns: []turn.ScriptTurn{large, says("never")}},
		{state: hub.RunFailed, reason: agentloop.ReasonCost, model: config.Model{Input: 1_000_000}, turns: []turn.ScriptTurn{dear, says("never")}},
		{state: hub.RunFailed, reason: run.ReasonCalls, turns: []turn.ScriptTurn{fails, says("never")}, with: budget(hub.Budget{Calls: 1})},
		{state: hub.RunFailed, reason: run.ReasonWall, turns: waits(), with: budget(hub.Budget{Wall: time.Second})},
		{state: hub.RunFailed, reason: run.ReasonBytes, turns: []turn.ScriptTurn{says("never")}, with: budget(hub.Budget{Bytes: 10})},

		{state: hub.RunCancelled, reason: reasonCancelled, turns: waits(), meanwhile: func(h *house, c hub.Caller, r hub.Run) error {
			_, err := hub.CancelRun.Do(h.t.Context(), h, c, r.ID)
			return err
		}},
		{state: hub.RunCancelled, reason: reasonSessionEnded, turns: waits(), meanwhile: func(h *house, c hub.Caller, r hub.Run) error {
			_, err := hub.EndSession.Do(h.t.Context(), h, c, hub.SessionChange{ID: r.Session})
			return err
		}},
		{state: hub.RunCancelled, reason: run.ReasonStopped, turns: waits(), meanwhile: func(h *house, c hub.Caller, _ hub.Run) error {
			_, err := hub.Stop.Do(h.t.Context(), h, c, hub.StopRequest{})
			return err
		}},
		{state: hub.RunCancelled, reason: "token_revoked", turns: waits(), meanwhile: func(h *house, c hub.Caller, _ hub.Run) error {
			_, err := hub.RevokeToken.Do(h.t.Context(), h, h.owner, hub.TokenChange{ID: c.Token})
			return err
		}},
		{state: hub.RunCancelled, reason: "not_a_member", turns: waits(), meanwhile: func(h *house, c hub.Caller, _ hub.Run) error {
			_, err := hub.RemoveMember.Do(h.t.Context(), h, h.owner, hub.MemberRemoval{Principal: c.User})
			return err
		}},

		{state: hub.RunFailed, reason: run.ReasonInterrupted, turns: waits(), restart: func(c *Config, _ *kernel.Config) { c.Hold = true }},
		{state: hub.RunFailed, reason: run.ReasonInterrupted, turns: waits(), restart: func(c *Config, _ *kernel.Config) { c.Models = nil }},
		{state: hub.RunFailed, reason: "not_found", turns: waits(), queued: true, restart: func(c *Config, _ *kernel.Config) { c.Models = nil }},
	}
}

// notOfAgents are the reasons that end no agent's run.
var notOfAgents = map[string]string{
	run.ReasonSteered:    "of a step alone: the run goes on with the caller's words",
	run.ReasonStepFailed: "of a list of steps: an agent is told how a step ended",
	run.ReasonCallerGone: "of a call that its caller waits for: an agent's run is started, and followed",
	"exit_status":        "of a step",
}

// TestAgentEndings produces each ending of an agent's run. The table is whole: it has every reason
// that the loop, the runs and the hub declare, and docs/AGENT.md has the same one.
func TestAgentEndings(t *testing.T) {
	all := endings()
	names := make(map[string]bool)
	for _, e := range all {
		names[e.state+" "+e.reason] = true
	}
	for reason, at := range declaredReasons(t, "../../agentloop", "../run", "../agent", ".") {
		has := names[hub.RunFailed+" "+reason] || names[hub.RunCancelled+" "+reason]
		if why := notOfAgents[reason]; has == (why != "") {
			t.Errorf("%s: the reason %q has no row in the table of endings, or one too many (%q)", at, reason, why)
		}
	}
	page, err := os.ReadFile("../../docs/AGENT.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := make(map[string]bool)
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (?:`(\\w+)`)? *\\|").FindAllStringSubmatch(string(page), -1) {
		documented[m[1]+" "+m[2]] = true
	}
	if got, want := slices.Sorted(maps.Keys(documented)), slices.Sorted(maps.Keys(names)); !slices.Equal(got, want) {
		t.Errorf("docs/AGENT.md has the endings\n%q\nwant\n%q", got, want)
	}

	dir, models := t.TempDir(), make(map[string]config.Model)
	name := func(i int) string { return fmt.Sprint("m", i) }
	for i, e := range all {
		b, err := canon.Marshal(turn.Script{Turns: e.turns})
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name(i)), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		e.model.Provider, e.model.Script = turn.Scripted, filepath.Join(dir, name(i))
		models[name(i)] = e.model
	}
	set := func(c *Config, k *kernel.Config) {
		var err error
		if c.Models, err = model.New(model.Config{Tools: k.Tools, Fetch: filepath.Join(bin(t), "palyra-fetch"), Models: models}); err != nil {
			t.Fatal(err)
		}
		k.Tools, c.Agent, c.Workspaces = c.Models, Agent{Tokens: 1_000_000, Cost: 1000}, map[string]string{"src": "/work"}
	}
	shared, whole := newHouse(t, set), t
	for i, e := range all {
		t.Run(strings.TrimSpace(fmt.Sprint(e.state, " ", e.reason)), func(t *testing.T) {
			h := shared
			if e.restart != nil {
				h = newHouse(t, func(c *Config, k *kernel.Config) { set(c, k); c.Bounds = session.Bounds{Active: 1} })
			}
			shared.t = t
			defer func() { shared.t = whole }()
			c := h.member(uint32(3000+i), access.Operator)
			if e.reason == "token_revoked" {
				c, _ = h.token(c, "run.start", "session.read", "session.write", "run.cancel")
			}
			q := hub.NewRun{Session: h.session(c), Agent: &hub.Agent{Prompt: "try", Model: name(i)}}
			if e.with != nil {
				e.with(&q)
			}
			start := func() hub.Run {
				r, err := hub.StartRun.Do(t.Context(), h, c, q)
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
			r := start()
			if e.meanwhile != nil || e.restart != nil {
				h.begun(c, r.ID, 2)
			}
			if e.queued {
				r = start()
			}
			if e.meanwhile != nil {
				if err := e.meanwhile(h, c, r); err != nil {
					t.Fatal(err)
				}
			}
			if e.restart != nil {
				h.stop()
				h.reopen(func(c *Config, k *kernel.Config) { set(c, k); e.restart(c, k) })
			}
			r = h.ended(h.owner, r.ID)
			if r.State != e.state || r.Reason != e.reason {
				t.Errorf("%s %q, want %s %q; %+v", r.State, r.Reason, e.state, e.reason, r.Answer)
			}
			if e.meanwhile == nil && e.restart == nil && (r.Answer == nil) != strings.HasPrefix(e.reason, "budget_") && e.reason != agentloop.ReasonTokens && e.reason != agentloop.ReasonCost {
				t.Errorf("the answer is %+v", r.Answer)
			}
			if (e.state == hub.RunDone) != (r.Answer != nil && r.Answer.Error == "" && (r.Answer.Text != "" || len(r.Answer.Calls) > 0)) {
				t.Errorf("%s, and the answer is %+v", r.State, r.Answer)
			}
		})
	}
}

// begun waits until so many steps of a run have begun.
func (h *house) begun(c hub.Caller, run string, steps int) {
	h.t.Helper()
	tape, err := hub.ReadTape.Do(h.t.Context(), h, c, hub.TapeQuery{Run: run})
	if err != nil {
		h.t.Fatal(err)
	}
	defer tape.Close()
	for steps > 0 {
		ev, err := tape.Next(h.t.Context())
		if err != nil {
			h.t.Fatal(err)
		}
		if ev.Kind == hub.EventStepStarted {
			steps--
		}
	}
}

// declaredReasons returns the reasons that packages declare as constants, and where.
func declaredReasons(t *testing.T, dirs ...string) map[string]string {
	t.Helper()
	out, fset := make(map[string]string), token.NewFileSet()
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", dir, len(files), err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(fset, name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range f.Decls {
				g, ok := d.(*ast.GenDecl)
				if !ok || g.Tok != token.CONST {
					continue
				}
				for _, s := range g.Specs {
					for i, id := range s.(*ast.ValueSpec).Names {
						values := s.(*ast.ValueSpec).Values
						if !strings.HasPrefix(strings.ToLower(id.Name), "reason") || i >= len(values) {
							continue
						}
						if l, ok := values[i].(*ast.BasicLit); ok && l.Kind == token.STRING {
							text, err := strconv.Unquote(l.Value)
							if err != nil {
								t.Fatal(err)
							}
							out[text] = fset.Position(id.Pos()).String()
						}
					}
				}
			}
		}
	}
	if len(out) < 10 {
		t.Errorf("only %d reasons are declared: %v", len(out), out)
	}
	return out
}
