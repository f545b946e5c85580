package agentloop

import (
	"encoding/json"
	"regexp"
	"strings"

	"palyra/agentloop/turn"
)

// flaw is what keeps an answer without calls from being a run's last one. The model is asked once
// to mend it, and once more when it has made calls since.
type flaw struct {
	has func(l *Loop, a *turn.Answer) bool
	ask string // what the model is told
	end string // what the run ends with if an answer has it again; "": that answer counts
}

// The flaws, in the order in which they're looked for. They are in an answer's form: words of
// promise or assent are any language's, and an honest answer's, too.
const (
	flawCut = iota
	flawSilent
	flawWritten
	flawAnnounces
	flawCount
)

var flaws = [flawCount]flaw{
	flawCut: {func(_ *Loop, a *turn.Answer) bool { return a.End == turn.EndLength },
		"Your answer was cut off. Go on exactly where it ended.",
		"the answer was cut off twice at the most tokens that it may have"},
	flawSilent: {func(_ *Loop, a *turn.Answer) bool { return strings.TrimSpace(a.Text()) == "" },
		"You said nothing. Say what you found or did, or call a tool.",
		"the model answered twice without a word"},
	flawWritten: {func(l *Loop, a *turn.Answer) bool { return l.written(a.Text()) },
		"Your answer ends with a call as text, and no call was made. Call the tool, or answer in words.",
		"the model twice wrote a call as text: its provider doesn't read this model's calls"},
	flawAnnounces: {func(_ *Loop, a *turn.Answer) bool { return announces(a.Text()) },
		"Your answer ends with a colon, and nothing follows. Make the call that it announces, or give the whole answer.",
		""},
}

// flawed asks the model to mend an answer, or ends the loop. It returns false for an answer that
// can be the last one.
func (l *Loop) flawed(a *turn.Answer) bool {
	for i := range flaws {
		f := &flaws[i]
		switch {
		case !f.has(l, a):
			continue
		case !l.asked[i]:
			l.asked[i] = true
			l.say(turn.Part{Text: f.ask})
		case f.end != "":
			l.ended = &End{ReasonIncomplete, f.end}
		default:
			continue
		}
		switch i {
		case flawCut:
			l.text += a.Text() // the rest follows
		case flawAnnounces:
			l.text = ""
		}
		return true
	}
	return false
}

// announces reports whether a text ends with a colon, behind which something was to come.
func announces(text string) bool {
	text = strings.TrimRight(text, " \t\r\n*_`")
	return strings.HasSuffix(text, ":") || strings.HasSuffix(text, "：")
}

var (
	// closing is what may stand behind a call that ends a text: brackets, fences and tags.
	closing = regexp.MustCompile("^(?:[\\s\\]}`]|</?[\\w:|.-]+>|<\\|[^|<>]*\\|>)*$")
	// tagged is a tag that names a call: <function=NAME>, <invoke name="NAME"> or <NAME>.
	tagged = regexp.MustCompile(`<(?:[\w:.-]+(?:=|\s+name=)["']?)?([\w.-]+)["']?\s*>`)
)

// maxBraces is how many objects a text's end is searched for.
const maxBraces = 64

// written reports whether a text ends with a call that could have been made. Models whose server
// has no parser for theirs write calls so: as an object of JSON with name and arguments, or in
// tags.
func (l *Loop) written(text string) bool {
	can := func(name, arguments string) bool {
		return name != "" && l.cfg.Call != nil && l.wrong(&turn.Call{Name: name, Arguments: arguments}) == ""
	}
	if text = strings.TrimSpace(text); strings.HasSuffix(strings.TrimRight(text, "` \n"), ">") {
		for _, m := range tagged.FindAllStringSubmatch(text, -1) {
			if can(m[1], "{}") {
				return true
			}
		}
	}
	for n, at := 0, len(text); n < maxBraces; n++ {
		if at = strings.LastIndexByte(text[:at], '{'); at < 0 {
			return false
		}
		var c struct {
			Name                         string
			Arguments, Parameters, Input json.RawMessage
		}
		d := json.NewDecoder(strings.NewReader(text[at:]))
		if d.Decode(&c) != nil || !closing.MatchString(text[at+int(d.InputOffset()):]) {
			continue
		}
		for _, arguments := range []json.RawMessage{c.Arguments, c.Parameters, c.Input} {
			var quoted string
			if json.Unmarshal(arguments, &quoted) == nil {
				arguments = json.RawMessage(quoted)
			}
			if len(arguments) > 0 && can(c.Name, string(arguments)) {
				return true
			}
		}
	}
	return false
}
