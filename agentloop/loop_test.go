package agentloop

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"palyra/agentloop/turn"
)

func says(text string) turn.Answer {
	if text == "" {
		return ended(turn.EndStop)
	}
	return ended(turn.EndStop, turn.Part{Text: text})
}

func ended(end string, parts ...turn.Part) turn.Answer {
	return turn.Answer{Message: turn.Message{Role: turn.Assistant, Parts: parts}, End: end, Usage: turn.Usage{Input: 10, Output: 1}}
}

func calls(names ...string) turn.Answer {
	a := ended(turn.EndCalls)
	for i, name := range names {
		a.Message.Parts = append(a.Message.Parts, turn.Part{Call: &turn.Call{ID: fmt.Sprint(name, i), Name: name, Arguments: `{"n":1}`}})
	}
	return a
}

func failed(class string) turn.Answer {
	return turn.Answer{Error: &turn.Error{Class: class, Message: "no"}}
}

// play tells a loop these answers, and each call that it failed or not as its name says. It returns
// what the loop made.
func play(t *testing.T, l *Loop, answers ...turn.Answer) (made []string, err error) {
	t.Helper()
	for {
		s, err := l.Next()
		switch {
		case err != nil:
			return made, err
		case s.Done:
			return append(made, "done"), nil
		case s.Call != nil:
			made = append(made, s.Call.Name)
			l.Called(s.Call.Name+" says", s.Call.Name == "fails")
		default:
			if len(answers) == 0 {
				return append(made, "asks"), nil
			}
			checkRequest(t, s.Turn)
			made = append(made, "turn")
			l.Answered(answers[0], nil)
			answers = answers[1:]
		}
	}
}

// checkRequest holds a question to what providers take: it can be encoded, roles alternate, and
// each call has one result, in the message behind it.
func checkRequest(t *testing.T, r *turn.Request) {
	t.Helper()
	b, err := r.Encode()
	if err == nil {
		_, err = turn.ParseRequest(b)
	}
	if err != nil {
		t.Error(err)
	}
	var open []string
	for i, m := range r.Messages {
		if i > 0 && m.Role == r.Messages[i-1].Role {
			t.Errorf("messages %d and %d are both the %s's", i-1, i, m.Role)
		}
		for _, p := range m.Parts {
			switch {
			case p.Call != nil:
				open = append(open, p.Call.ID)
			case p.Result != nil:
				j := slices.Index(open, p.Result.ID)
				if j < 0 {
					t.Errorf("message %d: a result of no call", i)
					continue
				}
				open = slices.Delete(open, j, j+1)
			}
		}
		if m.Role == turn.User && len(open) > 0 {
			t.Errorf("message %d: calls without results: %q", i, open)
		}
	}
	if r.Messages[len(r.Messages)-1].Role != turn.User {
		t.Error("the last message isn't the user's")
	}
}

// TestEnds: each way in which a loop ends.
func TestEnds(t *testing.T) {
	cut := ended(turn.EndLength, turn.Part{Text: "a"})
	cutCall := calls("a")
	cutCall.End = turn.EndLength
	written := says("I look.\n<tool_call>\n{\"name\": \"a\", \"arguments\": {\"n\": 1}}\n</tool_call>")
	for name, test := range map[string]struct {
		answers []turn.Answer
		made    string
		reason  string // "": an answer
	}{
		"an answer":                   {[]turn.Answer{says("yes")}, "turn done", ""},
		"after calls":                 {[]turn.Answer{calls("a", "b"), says("yes")}, "turn a b turn done", ""},
		"turns":                       {[]turn.Answer{calls("a"), calls("b"), calls("c"), calls("d")}, "turn a turn b turn c", ReasonTurns},
		"the same failure":            {[]turn.Answer{calls("fails", "fails", "fails", "a")}, "turn fails fails fails", ReasonFailures},
		"failures between":            {[]turn.Answer{calls("fails", "a"), calls("fails", "a"), says("no")}, "turn fails a turn fails a turn done", ""},
		"no key":                      {[]turn.Answer{failed(turn.AuthInvalid)}, "turn", ReasonProvider},
		"overloaded":                  {[]turn.Answer{failed(turn.RateLimited), failed(turn.Transient), says("yes")}, "turn turn turn done", ""},
		"overloaded for too long":     {[]turn.Answer{failed(turn.RateLimited), failed(turn.Transient), failed(turn.Unreachable)}, "turn turn turn", ReasonProvider},
		"content":                     {[]turn.Answer{ended(turn.EndRefused)}, "turn", ReasonProvider},
		"cut off once":                {[]turn.Answer{cut, says("b")}, "turn turn done", ""},
		"cut off twice":               {[]turn.Answer{cut, cut}, "turn turn", ReasonIncomplete},
		"a call before the cut":       {[]turn.Answer{cutCall, says("b")}, "turn turn done", ""},
		"silence once":                {[]turn.Answer{says(" "), says("b")}, "turn turn done", ""},
		"silence twice":               {[]turn.Answer{ended(turn.EndStop), ended(turn.EndStop)}, "turn turn", ReasonIncomplete},
		"silence again":               {[]turn.Answer{says(" "), calls("a"), says(" "), says("b")}, "turn turn a turn", ReasonTurns},
		"a call as text":              {[]turn.Answer{written, calls("a"), says("b")}, "turn turn a turn done", ""},
		"twice a call as text":        {[]turn.Answer{written, written}, "turn turn", ReasonIncomplete},
		"an announcement":             {[]turn.Answer{says("I look:"), calls("a"), says("b")}, "turn turn a turn done", ""},
		"it's meant":                  {[]turn.Answer{says("I look:"), says("It has:**")}, "turn turn done", ""},
		"calls that can't be made":    {[]turn.Answer{calls("unknown", "a"), says("b")}, "turn a turn done", ""},
		"only calls that can't be it": {[]turn.Answer{calls("unknown"), calls("unknown", "unknown")}, "turn turn", ReasonFailures},
	} {
		l := New(Config{Prompt: "?", MaxTurns: 3, Call: func(c *turn.Call) string {
			if c.Name == "unknown" {
				return "no such tool"
			}
			return ""
		}})
		made, err := play(t, l, test.answers...)
		reason := ""
		if end, ok := errors.AsType[*End](err); ok {
			reason = end.Reason
		}
		if got := strings.Join(made, " "); got != test.made || reason != test.reason || reason != "" && err.Error() == "" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if again, err2 := l.Next(); reason != "" && (err2 != err || again != (Step{})) {
			t.Errorf("%s: it goes on behind its end", name)
		}
		checkHistory(t, l.Messages())
	}
	for want, answers := range map[string][]turn.Answer{
		"ab":        {cut, says("b")},
		"b":         {cut, calls("a"), says("b")},
		"all of it": {says("It has:"), says("all of it")},
	} {
		l := New(Config{Prompt: "?"})
		if _, err := play(t, l, answers...); err != nil || l.Text() != want || l.Usage().Input != int64(10*len(answers)) {
			t.Errorf("%q, want %q; %+v, %v", l.Text(), want, l.Usage(), err)
		}
	}
}

// TestWritten: a call that ends a text is known in the forms in which models write theirs where their
// server has no parser, and what only speaks of calls is not.
func TestWritten(t *testing.T) {
	l := New(Config{Prompt: "?", Call: func(c *turn.Call) string {
		if c.Name != "read" || !json.Valid([]byte(c.Arguments)) || c.Arguments[0] != '{' {
			return "no"
		}
		return ""
	}})
	for text, want := range map[string]bool{
		`{"name": "read", "arguments": {"path": "a"}}`:                                        true,
		"```json\n{\"name\": \"read\", \"parameters\": {\"path\": {\"of\": \"a\"}}}\n```":     true,
		`[TOOL_CALLS][{"name": "read", "arguments": {}}]`:                                     true,
		`<tool_call>{"name": "read", "arguments": {}}</tool_call>`:                            true,
		`<|python_tag|>{"name": "read", "parameters": {}}<|eom_id|>`:                          true,
		`{"type": "function", "function": {"name": "read", "arguments": "{\"path\":\"a\"}"}}`: true,
		`I do. <function=read>{"path": "a"}</function>`:                                       true,
		`<invoke name="read"><parameter name="path">a</parameter></invoke>`:                   true,
		"<read>\n<path>a</path>\n</read>":                                                     true,
		`A call is {"name": "read", "arguments": {}}, and I made it.`:                         false,
		`{"name": "write", "arguments": {}}`:                                                  false,
		`{"name": "read"}`:                                                                    false,
		`{"name": "read", "arguments": "a"}`:                                                  false,
		`{"name": "read", "arguments": {}`:                                                    false,
		`The file has {"path": "a"}`:                                                          false,
		`<b>bold</b>`:                                                                         false,
		`See <read> of the handbook.`:                                                         false,
		strings.Repeat(`{"a":`, 10_000):                                                       false,
		"":                                                                                    false,
	} {
		if got := l.written(text); got != want {
			t.Errorf("%.80s: %v", text, got)
		}
	}
	for text, want := range map[string]bool{"I look:": true, "**Let me see:**\n": true, "我看看：": true, "It is 12:30": false, "a: b": false, "": false} {
		if got := announces(text); got != want {
			t.Errorf("%q announces: %v", text, got)
		}
	}
}

// TestNextModel: when a model fails for good the next one is asked, with what was said so far.
func TestNextModel(t *testing.T) {
	down := []turn.Answer{failed(turn.Transient), failed(turn.Transient), failed(turn.Transient)}
	for name, test := range map[string]struct {
		answers []turn.Answer
		models  string // that were asked
		reason  string
	}{
		"no key":        {[]turn.Answer{calls("a"), failed(turn.AuthInvalid), says("yes")}, "0 0 1", ""},
		"down":          {append(down[:3:3], says("yes")), "0 0 0 1", ""},
		"both":          {append(down[:3:3], down...), "0 0 0 1 1 1", ReasonProvider},
		"content":       {[]turn.Answer{failed(turn.ContentBlocked)}, "0", ReasonProvider},
		"it stays with": {[]turn.Answer{failed(turn.Quota), calls("a"), says("yes")}, "0 1 1", ""},
	} {
		l := New(Config{Prompt: "?", Models: []Model{{MaxTokens: 1}, {MaxTokens: 2}}})
		var models []string
		var err error
		for {
			var s Step
			if s, err = l.Next(); err != nil || s.Done {
				break
			}
			if s.Call != nil {
				l.Called("ok", false)
				continue
			}
			checkRequest(t, s.Turn)
			if s.Turn.MaxTokens != int64(s.Model+1) {
				t.Errorf("%s: model %d is asked for %d tokens", name, s.Model, s.Turn.MaxTokens)
			}
			models = append(models, fmt.Sprint(s.Model))
			l.Answered(test.answers[0], nil)
			test.answers = test.answers[1:]
		}
		reason := ""
		if end, ok := errors.AsType[*End](err); ok {
			reason = end.Reason
		}
		if got := strings.Join(models, " "); got != test.models || reason != test.reason {
			t.Errorf("%s: asked %s, %v", name, got, err)
		}
	}
}

// checkHistory: what a run leaves can stand before the prompt of the next.
func checkHistory(t *testing.T, m []turn.Message) {
	t.Helper()
	s, err := New(Config{History: m, Prompt: "and now?"}).Next()
	if err != nil {
		t.Fatal(err)
	}
	open := map[string]bool{}
	for _, m := range s.Turn.Messages {
		for _, p := range m.Parts {
			if p.Call != nil {
				open[p.Call.ID] = true
			}
			if p.Result != nil {
				delete(open, p.Result.ID)
			}
		}
	}
	if len(open) > 0 {
		t.Errorf("calls without results: %v", open)
	}
}

// TestSameAgain: a loop that is told the same is where the first one was, after each step.
func TestSameAgain(t *testing.T) {
	type told struct {
		answer turn.Answer
		text   string
		fails  bool
	}
	one := New(Config{Prompt: "?", Models: []Model{{Window: 2000}}})
	var all []told
	for i := range 20 {
		s, err := one.Next()
		if err != nil {
			t.Fatal(err)
		}
		next := told{text: strings.Repeat("x", 700*(i%3)), fails: i%5 == 0}
		if s.Call == nil {
			next.answer = calls(fmt.Sprint("a", i), fmt.Sprint("b", i))
			if i == 10 {
				next.answer = failed(turn.Transient)
			}
		}
		all = append(all, next)
		again := New(Config{Prompt: "?", Models: []Model{{Window: 2000}}})
		for _, l := range []*Loop{one, again} {
			tell := all
			if l == one {
				tell = all[i:]
			}
			for _, x := range tell {
				s, err := l.Next()
				if err != nil {
					t.Fatal(err)
				}
				if s.Call != nil {
					l.Called(x.text, x.fails)
				} else {
					l.Answered(x.answer, nil)
				}
			}
		}
		a, err1 := one.Next()
		b, err2 := again.Next()
		ja, _ := json.Marshal(a)
		jb, _ := json.Marshal(b)
		if string(ja) != string(jb) || (err1 == nil) != (err2 == nil) {
			t.Fatalf("after %d: %s, %v\n%s, %v", i, ja, err1, jb, err2)
		}
	}
}

// TestFit: a conversation that gets too long keeps its prompt and its end, and stays one that
// providers take.
func TestFit(t *testing.T) {
	long := strings.Repeat("ä", 3000)
	var history []turn.Message
	for i := range 5 {
		l := New(Config{Prompt: fmt.Sprint("earlier ", i)})
		play(t, l, calls("a"), says(long))
		history = append(history, l.Messages()...)
	}
	l := New(Config{History: history, Prompt: "the task", Models: []Model{{Window: 12_000, MaxTokens: 1000}}})
	for i := range 40 {
		s, err := l.Next()
		if err != nil {
			t.Fatal(i, err)
		}
		if s.Call != nil {
			l.Called(fmt.Sprint(i, " ", long), false)
			continue
		}
		checkRequest(t, s.Turn)
		b, err := s.Turn.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(b)) > l.room()+8192 || !strings.Contains(string(b), "the task") {
			t.Errorf("turn %d: %d bytes, room for %d", i, len(b), l.room())
		}
		checkCut(t, l, s)
		l.Answered(calls(fmt.Sprint("a", i)), nil)
	}
	if _, err := New(Config{Prompt: strings.Repeat("x", 100_000), Models: []Model{{Window: 10_000}}}).Next(); err == nil || err.(*End).Reason != ReasonContext {
		t.Errorf("a prompt beyond the window: %v", err)
	}
}

// FuzzLoop: whatever a model answers, the loop ends, and asks what providers take.
func FuzzLoop(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Fuzz(func(t *testing.T, b []byte) {
		var answers []turn.Answer
		for _, c := range b {
			a := calls([]string{"a", "fails", "unknown"}[c%3])
			switch c >> 4 {
			case 0:
				a = says("done")
			case 1:
				a = says("")
			case 2:
				a = failed(turn.RateLimited)
			case 3:
				a.End = turn.EndLength
			case 4:
				a = calls("a", "fails", "unknown")
			case 5:
				a = says([]string{`{"name":"a","arguments":{}}`, "I look:"}[c%2])
			}
			answers = append(answers, a)
		}
		l := New(Config{Prompt: "?", Models: []Model{{Window: 4000}, {Window: 3000}}, Call: func(c *turn.Call) string {
			if c.Name == "unknown" {
				return "no such tool"
			}
			return ""
		}})
		_, _ = play(t, l, answers...)
		checkHistory(t, l.Messages())
	})
}

// TestForeign: the loop makes its own calls of an answer, and ends with the caller's. The next one
// goes on with their results, with or without a prompt.
func TestForeign(t *testing.T) {
	cfg := func(c Config) Config {
		c.Foreign = func(c *turn.Call) bool { return strings.HasPrefix(c.Name, "client") }
		c.Call = func(c *turn.Call) string {
			if strings.HasSuffix(c.Name, "wrong") {
				return "no such argument"
			}
			return ""
		}
		return c
	}
	l := New(cfg(Config{Prompt: "the task"}))
	made, err := play(t, l, calls("client", "a", "client_wrong", "client_too"))
	if err != nil || strings.Join(made, " ") != "turn a done" || len(l.Open()) != 2 || l.Open()[1].Name != "client_too" {
		t.Fatalf("%q, %v, open %v", made, err, l.Open())
	}
	history := l.Messages(turn.Result{ID: "client0", Text: "the result"})
	checkHistory(t, history)
	for _, prompt := range []string{"", "and hurry"} {
		next := New(cfg(Config{History: history, Prompt: prompt}))
		s, err := next.Next()
		if err != nil {
			t.Fatal(err)
		}
		b, err := s.Turn.Encode()
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"the task", "the result", "No result of this call came.", "a says", "no such argument", prompt} {
			if !strings.Contains(string(b), want) {
				t.Errorf("with %q, %q isn't told", prompt, want)
			}
		}
		next.Answered(says("thanks"), nil)
		if s, err := next.Next(); err != nil || !s.Done || next.Text() != "thanks" || len(next.Open()) > 0 {
			t.Errorf("%+v, %v", s, err)
		}
		if m := next.Messages(); len(m) != map[bool]int{true: 1, false: 2}[prompt == ""] {
			t.Errorf("with %q the run has %d messages of its own", prompt, len(m))
		}
	}
	cut := calls("client")
	cut.End = turn.EndLength
	if made, err := play(t, New(cfg(Config{Prompt: "?"})), cut, says("a")); err != nil || strings.Join(made, " ") != "turn turn done" {
		t.Errorf("a call in an answer that was cut off: %q, %v", made, err)
	}
}

// TestGoesOnWithinWindow: where a loop goes on with results, the prompt that they are for stays.
func TestGoesOnWithinWindow(t *testing.T) {
	cfg := Config{Prompt: "the task", Models: []Model{{Window: 6000, MaxTokens: 1000}}, Foreign: func(*turn.Call) bool { return true }}
	history := []turn.Message{{Role: turn.Assistant, Parts: []turn.Part{{Text: "of a run whose beginning isn't told"}}}}
	for i := range 30 {
		l := New(cfg)
		s, err := l.Next()
		if err != nil {
			t.Fatal(i, err)
		}
		checkRequest(t, s.Turn)
		if s.Turn.Messages[0].Parts[0].Text != "the task" {
			t.Fatalf("after %d results the prompt is gone", i)
		}
		a := calls("client")
		a.Message.Parts[0].Call.ID = fmt.Sprint("call", i)
		l.Answered(a, nil)
		if s, err := l.Next(); err != nil || !s.Done {
			t.Fatal(s, err)
		}
		history = append(history, l.Messages(turn.Result{ID: fmt.Sprint("call", i), Text: strings.Repeat("x", 3000)})...)
		cfg.Prompt, cfg.History = "", history
	}
}

// TestHear: what a user says meanwhile is told before the next turn, behind the results; calls that
// haven't been made aren't, and a loop that was done goes on.
func TestHear(t *testing.T) {
	l := New(Config{Prompt: "?", Foreign: func(c *turn.Call) bool { return c.Name == "client" }})
	last := func() turn.Message {
		t.Helper()
		s, err := l.Next()
		if err != nil || s.Turn == nil {
			t.Fatalf("%+v, %v", s, err)
		}
		checkRequest(t, s.Turn)
		return s.Turn.Messages[len(s.Turn.Messages)-1]
	}
	l.Answered(calls("a", "b", "client"), nil)
	if s, err := l.Next(); err != nil || s.Call == nil || s.Call.Name != "a" {
		t.Fatalf("%+v, %v", s, err)
	}
	l.Called("a says", false)
	l.Hear("stop it")
	m := last()
	if len(m.Parts) != 4 || m.Parts[0].Result.Text != "a says" || !m.Parts[1].Result.Failed || !m.Parts[2].Result.Failed || m.Parts[3].Text != "stop it" {
		t.Errorf("%+v", m.Parts)
	}
	l.Hear("really")
	if m := last(); len(m.Parts) != 5 || m.Parts[4].Text != "really" {
		t.Errorf("%+v", m.Parts)
	}
	l.Answered(failed(turn.RateLimited), nil)
	l.Answered(failed(turn.RateLimited), nil)
	l.Hear("well?")
	l.Answered(failed(turn.RateLimited), nil) // a new question has attempts of its own
	last()
	l.Answered(says("stopped"), nil)
	if s, err := l.Next(); err != nil || !s.Done || l.Text() != "stopped" {
		t.Fatalf("%+v, %v", s, err)
	}
	l.Hear("and now?")
	if m := last(); m.Parts[0].Text != "and now?" {
		t.Errorf("%+v", m.Parts)
	}
	l.Answered(says("nothing"), nil)
	if s, err := l.Next(); err != nil || !s.Done || l.Text() != "nothing" {
		t.Fatalf("%+v, %v, %q", s, err, l.Text())
	}
	checkHistory(t, l.Messages())
}

// checkCut holds what a question says is left out to what it has.
func checkCut(t *testing.T, l *Loop, s Step) {
	t.Helper()
	c, got := s.Cut, s.Turn.Messages
	if c == (Cut{}) {
		if len(got) != len(l.messages) {
			t.Errorf("%d of %d messages, and nothing is said to be left out", len(got), len(l.messages))
		}
		return
	}
	left := c.To - c.From
	if c.From <= l.prompt && l.prompt < c.To { // it stays
		left--
	}
	short := 0
	for i := range got {
		for _, p := range got[i].Parts {
			if p.Result != nil && strings.HasSuffix(p.Result.Text, "the window is full]") {
				short++
			}
		}
	}
	if c.Messages != len(l.messages) || len(got) != c.Messages-left || short != c.Shortened || size(got) >= c.Bytes {
		t.Errorf("%+v of %d messages, the prompt at %d: %d are there, %d of them shortened", c, len(l.messages), l.prompt, len(got), short)
	}
}

// TestBudgets: with as many tokens as a run may take, or as much cost, no further turn is made; the
// answer that exceeds it is still had.
func TestBudgets(t *testing.T) {
	expensive := calls("a")
	expensive.Usage = turn.Usage{Input: 100, Cached: 40, Output: 10}
	models := []Model{{Price: Price{1, 0, 0}}, {Price: Price{Input: 3, Cached: 1, Output: 5}}}
	for name, test := range map[string]struct {
		cfg    Config
		made   string
		reason string
		cost   int64
	}{
		"tokens":         {Config{Tokens: 111}, "turn a turn a", ReasonTokens, 2 * 60},
		"of one turn":    {Config{Tokens: 110}, "turn a", ReasonTokens, 60},
		"cost":           {Config{Cost: 121}, "turn a turn a turn a", ReasonCost, 180},
		"none":           {Config{}, "turn a turn a turn a turn done", "", 180 + 10},
		"a last answer":  {Config{Tokens: 331}, "turn a turn a turn a turn done", "", 180 + 10},
		"exactly enough": {Config{Cost: 180}, "turn a turn a turn a", ReasonCost, 180},
	} {
		test.cfg.Prompt, test.cfg.Models = "?", models
		l := New(test.cfg)
		made, err := play(t, l, expensive, expensive, expensive, says("done"))
		reason := ""
		if end, ok := errors.AsType[*End](err); ok {
			reason = end.Reason
		}
		if got := strings.Join(made, " "); got != test.made || reason != test.reason || l.Cost() != test.cost {
			t.Errorf("%s: %q, %v, cost %d", name, got, err, l.Cost())
		}
	}
	l := New(Config{Prompt: "?", Models: models})
	if _, err := play(t, l, failed(turn.AuthInvalid), expensive, says("done")); err != nil || l.Cost() != 3*60+40+5*10+3*10+5 {
		t.Errorf("of the next model: %d, %v", l.Cost(), err)
	}
	// A provider that says more was cached than asked takes nothing off, and a failed turn counts.
	absurd, broken := calls("a"), failed(turn.Transient)
	absurd.Usage, broken.Usage = turn.Usage{Input: 1, Cached: 1 << 40, Output: 1}, turn.Usage{Input: 100, Output: 7}
	l = New(Config{Prompt: "?", Models: models[:1], Cost: 150})
	made, err := play(t, l, absurd, broken, broken, says("done"))
	if end, ok := errors.AsType[*End](err); !ok || end.Reason != ReasonCost || l.Cost() != 200 || l.Usage() != (turn.Usage{Input: 201, Cached: 1, Output: 15}) {
		t.Errorf("%q, %v, cost %d, %+v", made, err, l.Cost(), l.Usage())
	}
}
