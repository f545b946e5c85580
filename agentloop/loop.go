// Package agentloop says what a model is asked next, and which call its answer makes.
//
//	l := agentloop.New(agentloop.Config{Prompt: "…", Offers: offers, Known: known, …})
//	for {
//		s, err := l.Next()            // a turn, a call, or the end
//		l.Answered(answer) / l.Called(result)
//	}
//
// # Contract
//
// A Loop is a pure machine: it makes nothing, keeps no time and has no other source. Told the
// same steps again, after a restart, it is where it was. Every turn and every call is a step of a
// run (palyra/hub/run), and goes through the gate.
//
// It ends: an answer without calls is the last, and turns, repeated failures and the model's window
// are bounded. A call that can't be one (an unknown tool, arguments that are no JSON object) is
// answered at once, without a step.
//
// # What it does not protect against
//
// The model can obey any text that it reads. Its calls are proposals: policy, with the labels of
// what the session has read, decides each.
package agentloop

import (
	"fmt"

	"palyra/agentloop/turn"
	"palyra/internal/canon"
)

// The bounds of a loop.
const (
	MaxTurns    = 128 // of a run
	maxFailures = 3   // of the same call, before the run ends
	maxAttempts = 3   // of a turn

	DefaultWindow = 128_000 // of a model, in tokens
)

// The reasons for which a loop ends without a final answer.
const (
	ReasonTurns      = "max_turns"
	ReasonProvider   = "provider_error"
	ReasonContext    = "context_budget_exhausted"
	ReasonIncomplete = "incomplete_final_answer"
	ReasonFailures   = "repeated_tool_failure"
	ReasonTokens     = "budget_tokens"
	ReasonCost       = "budget_cost"
)

// End is the error of a loop that ends without a final answer.
type End struct {
	Reason string
	Text   string // what happened, in words
}

// Error implements error.
func (e *End) Error() string { return e.Text }

// Config says what a loop is for.
type Config struct {
	System  string
	History []turn.Message // of the session's earlier runs, oldest first
	Prompt  string         // "": the History ends with results, and the loop goes on there
	Offers  []turn.Offer
	// Call reports what is wrong with a call that can't be made, "" if nothing is.
	Call func(c *turn.Call) string
	// Foreign reports whether a call is the caller's to make: the loop ends with those. Default: none.
	Foreign func(c *turn.Call) bool

	MaxTurns int     // default, and at most, MaxTurns
	Models   []Model // each is asked when the one before it has failed; none: one of unknown bounds
	CacheKey string
	// Tokens and Cost are what the turns may take: with as much, no further one is made. The cost is
	// in tokens times prices. 0: no bound.
	Tokens, Cost int64
}

// Price is what each token of a model costs.
type Price struct{ Input, Cached, Output int64 }

// Of is what a turn costs.
func (p Price) Of(u turn.Usage) int64 {
	return (u.Input-u.Cached)*p.Input + u.Cached*p.Cached + u.Output*p.Output
}

// Model is what a loop knows of a model.
type Model struct {
	MaxTokens int64 // of an answer; 0: the provider's
	Window    int64 // in tokens; 0: 128,000
	Price     Price
}

// Step is what comes next: exactly one member is set.
type Step struct {
	Turn *turn.Request
	Call *turn.Call
	// Done says that the model has answered. Text of the Loop is the answer, and Open has the calls
	// that the caller is to make.
	Done bool
	Cut  Cut // what a Turn doesn't tell
	// Model is the index of the model that a Turn is for.
	Model int
	// Again is how many attempts of a Turn have failed, and Wait the pause in milliseconds that the
	// model's provider wants; 0: the caller's choice.
	Again int
	Wait  int64
}

// Loop is the machine. It is not safe for concurrent use.
type Loop struct {
	cfg      Config
	messages []turn.Message
	first    int // index of the first message of this run
	prompt   int // index of the message with the prompt that the run works on

	calls    []*turn.Call   // that the last answer wants, not made yet
	open     []*turn.Call   // that it wants of the caller
	cut      bool           // that answer was cut off, so none of them is made
	results  []turn.Part    // of those that were
	failures map[string]int // by call
	ended    *End
	done     bool
	text     string

	model           int // that is asked
	turns, attempts int
	wait            int64
	asked           [flawCount]bool // to mend such an answer, since it made its last call
	usage           turn.Usage
	cost            int64
}

// New returns a Loop that hasn't begun.
func New(cfg Config) *Loop {
	if cfg.MaxTurns <= 0 || cfg.MaxTurns > MaxTurns {
		cfg.MaxTurns = MaxTurns
	}
	cfg.Models = append([]Model(nil), cfg.Models...)
	if len(cfg.Models) == 0 {
		cfg.Models = []Model{{}}
	}
	for i := range cfg.Models {
		if cfg.Models[i].Window <= 0 {
			cfg.Models[i].Window = DefaultWindow
		}
	}
	for len(cfg.History) > 0 && !opens(cfg.History[0]) { // of a run whose beginning isn't told
		cfg.History = cfg.History[1:]
	}
	l := &Loop{cfg: cfg, messages: append([]turn.Message(nil), cfg.History...), failures: make(map[string]int)}
	l.first, l.prompt = len(l.messages), len(l.messages)
	if cfg.Prompt != "" {
		l.say(turn.Part{Text: cfg.Prompt})
		return l
	}
	for l.prompt--; l.prompt > 0 && !opens(l.messages[l.prompt]); l.prompt-- {
	}
	l.prompt = max(l.prompt, 0)
	return l
}

// say adds to the user's side of the conversation.
func (l *Loop) say(parts ...turn.Part) {
	if n := len(l.messages); n > l.first && l.messages[n-1].Role == turn.User {
		l.messages[n-1].Parts = append(l.messages[n-1].Parts, parts...)
		return
	}
	l.messages = append(l.messages, turn.Message{Role: turn.User, Parts: parts})
}

// Next returns what comes next. Its errors are of type *End, and it has the same one ever after.
func (l *Loop) Next() (Step, error) {
	for len(l.calls) > 0 && l.ended == nil {
		c := l.calls[0]
		why := l.wrong(c)
		if l.cut {
			why = "your answer was cut off behind it, at the most tokens that it may have"
		}
		if why == "" {
			return Step{Call: c}, nil
		}
		l.Called("Not made: "+why, true)
	}
	switch {
	case l.ended != nil:
		return Step{}, l.ended
	case l.done, len(l.open) > 0:
		return Step{Done: true}, nil
	case l.turns >= l.cfg.MaxTurns:
		return l.end(ReasonTurns, "the model has been asked %d times, and as many are allowed", l.turns)
	case l.cfg.Tokens > 0 && l.usage.Input+l.usage.Output >= l.cfg.Tokens:
		return l.end(ReasonTokens, "the model has taken %d tokens, and a run may take %d", l.usage.Input+l.usage.Output, l.cfg.Tokens)
	case l.cfg.Cost > 0 && l.cost >= l.cfg.Cost:
		return l.end(ReasonCost, "the model's turns have cost what a run's may")
	}
	if len(l.results) > 0 {
		l.say(l.results...)
		l.results = nil
	}
	messages, cut, ok := fit(l.messages, l.prompt, l.room())
	if !ok {
		return l.end(ReasonContext, "the prompt and the last results don't fit into the model's window of %d tokens", l.cfg.Models[l.model].Window)
	}
	r := &turn.Request{System: l.cfg.System, Messages: messages, Tools: l.cfg.Offers, MaxTokens: l.cfg.Models[l.model].MaxTokens, CacheKey: l.cfg.CacheKey}
	return Step{Turn: r, Cut: cut, Model: l.model, Again: l.attempts, Wait: l.wait}, nil
}

// wrong says why a call can't be made, "" if it can.
func (l *Loop) wrong(c *turn.Call) string {
	if l.cfg.Call == nil {
		return ""
	}
	return l.cfg.Call(c)
}

func (l *Loop) end(reason, format string, a ...any) (Step, error) {
	l.ended = &End{reason, fmt.Sprintf(format, a...)}
	return Step{}, l.ended
}

// Answered tells what the model answered. err says why there is no whole answer.
func (l *Loop) Answered(a turn.Answer, err error) {
	if a.Error == nil && err != nil {
		a.Error = &turn.Error{Class: turn.Malformed, Message: err.Error()}
	}
	l.count(a.Usage)
	if a.Error != nil {
		l.failed(a.Error)
		return
	}
	l.turns, l.attempts, l.wait = l.turns+1, 0, 0
	if len(a.Message.Parts) > 0 {
		l.messages = append(l.messages, a.Message)
	}
	l.cut = a.End == turn.EndLength
	for _, c := range a.Calls() {
		if !l.cut && l.cfg.Foreign != nil && l.cfg.Foreign(c) && l.wrong(c) == "" {
			l.open, l.text = append(l.open, c), a.Text()
		} else {
			l.calls = append(l.calls, c)
		}
	}
	switch {
	case a.End == turn.EndRefused:
		l.ended = &End{ReasonProvider, turn.ContentBlocked + ": the provider doesn't let the model answer"}
	case len(l.open) > 0:
	case len(l.calls) > 0:
		l.asked, l.text = [flawCount]bool{}, ""
	case !l.flawed(&a):
		l.done = true
		l.text += a.Text()
	}
}

// count adds what a turn took, as its provider says: a failed one, too. No more is cached than was
// asked, or it would pay for other turns.
func (l *Loop) count(u turn.Usage) {
	u.Cached = min(u.Cached, u.Input)
	l.usage.Input += u.Input
	l.usage.Cached += u.Cached
	l.usage.Output += u.Output
	l.usage.Reasoning += u.Reasoning
	l.cost += l.cfg.Models[l.model].Price.Of(u)
}

// failed says what follows a turn without an answer: the same question, after a while or to the
// next model, or the end. A question that a provider's rules for content forbid goes to no other.
func (l *Loop) failed(e *turn.Error) {
	l.attempts++
	l.wait = e.RetryAfter
	switch {
	case e.Again() && l.attempts < maxAttempts:
	case e.Class != turn.ContentBlocked && l.Fallback():
	default:
		l.ended = &End{ReasonProvider, e.Error()}
	}
}

// Model is the index of the model that is asked.
func (l *Loop) Model() int { return l.model }

// Fallback has the next model asked, if there is one: the caller doesn't ask this one now.
func (l *Loop) Fallback() bool {
	if l.model+1 >= len(l.cfg.Models) {
		return false
	}
	l.model, l.attempts, l.wait = l.model+1, 0, 0
	return true
}

// Called tells what became of the call that Next returned.
func (l *Loop) Called(text string, failed bool) {
	c := l.calls[0]
	l.calls = l.calls[1:]
	if text == "" {
		text = "(no output)"
	}
	l.results = append(l.results, turn.Part{Result: &turn.Result{ID: c.ID, Text: text, Failed: failed}})
	if !failed {
		return
	}
	key := c.Name + "\x00" + c.Arguments
	if b, err := canon.Canonical([]byte(c.Arguments)); err == nil {
		key = c.Name + "\x00" + string(b)
	}
	if l.failures[key]++; l.failures[key] >= maxFailures {
		l.ended = &End{ReasonFailures, fmt.Sprintf("the same call of %.64q failed %d times", c.Name, maxFailures)}
	}
}

// Hear tells the loop what its user says meanwhile. Calls that haven't been made aren't any more,
// and a loop that was done goes on.
func (l *Loop) Hear(text string) {
	if l.ended != nil {
		return
	}
	for _, c := range append(l.calls, l.open...) {
		l.results = append(l.results, turn.Part{Result: &turn.Result{ID: c.ID, Text: "Not made: your user said something else.", Failed: true}})
	}
	if len(l.results) > 0 {
		l.say(l.results...)
	}
	l.say(turn.Part{Text: text})
	l.calls, l.open, l.results, l.cut, l.done, l.text = nil, nil, nil, false, false, ""
	l.attempts, l.wait, l.asked = 0, 0, [flawCount]bool{}
}

// Text is the model's answer, once Next says Done.
func (l *Loop) Text() string { return l.text }

// Usage is what the turns took.
func (l *Loop) Usage() turn.Usage { return l.usage }

// Cost is what the turns have cost, in tokens times prices.
func (l *Loop) Cost() int64 { return l.cost }

// Open is the calls that the caller is to make, once Next says Done.
func (l *Loop) Open() []*turn.Call { return l.open }

// Messages is the conversation of this run: its prompt and what followed, for the History of the
// next run, which brings the results of calls that are open. Other calls that weren't made have
// that as their result.
func (l *Loop) Messages(results ...turn.Result) []turn.Message {
	out := append([]turn.Message(nil), l.messages[l.first:]...)
	rest := append([]turn.Part(nil), l.results...)
	for _, c := range l.calls {
		rest = append(rest, turn.Part{Result: &turn.Result{ID: c.ID, Text: "The run ended before this call was made.", Failed: true}})
	}
	for _, c := range l.open {
		r := turn.Result{ID: c.ID, Text: "No result of this call came.", Failed: true}
		for i := range results {
			if results[i].ID == c.ID {
				r = results[i]
			}
		}
		rest = append(rest, turn.Part{Result: &r})
	}
	if len(rest) > 0 {
		out = append(out, turn.Message{Role: turn.User, Parts: rest})
	}
	return out
}

// room is how many bytes of messages a request may have: the window without the answer, the
// tools, the system's words and a margin. A token is about four bytes of English; code and other
// languages have fewer, so three are counted.
func (l *Loop) room() int64 {
	m := l.cfg.Models[l.model]
	answer := m.MaxTokens
	if answer <= 0 {
		answer = min(8192, m.Window/4)
	}
	n := (m.Window-answer)*3 - int64(len(l.cfg.System)) - 1024
	for i := range l.cfg.Offers {
		o := &l.cfg.Offers[i]
		n -= int64(len(o.Name) + len(o.Description) + len(o.Schema) + 32)
	}
	// The request is one line of JSON, with escapes.
	return min(n, turn.MaxRequest/2)
}
