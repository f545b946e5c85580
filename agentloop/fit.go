package agentloop

import (
	"fmt"
	"slices"

	"palyra/agentloop/turn"
)

// The bounds of what is kept of a conversation that gets too long.
const (
	keepLast   = 6   // messages at the end that stay as they are
	keepResult = 400 // bytes of an older result
)

// Cut says what isn't as it was in the messages of a question. The zero Cut is nothing.
type Cut struct {
	Messages int   // that there were
	Bytes    int64 // of them, about
	From, To int   // [From, To) of them are left out
	// Shortened is how many messages, of those that are left, have shorter results. They're older
	// than the last six.
	Shortened int
}

// fit returns the messages of a conversation, or what is kept of them in room bytes. It is a
// function of its arguments alone, so a run that goes on after a restart asks the same. In turn it
// shortens the results of tools but those of the last messages, leaves out what came before the
// prompt, then what followed it, oldest first. The prompt and the last messages stay: without room
// for these ok is false.
func fit(messages []turn.Message, prompt int, room int64) (out []turn.Message, cut Cut, ok bool) {
	was := size(messages)
	if was <= room {
		return messages, Cut{}, true
	}
	shortened := make([]int, len(messages)+1) // of the messages from each on
	out = make([]turn.Message, len(messages))
	for i, m := range slices.Backward(messages) {
		out[i], shortened[i] = m, shortened[i+1]
		if i >= len(messages)-keepLast {
			continue
		}
		if out[i] = short(m); size(out[i:i+1]) != size(messages[i:i+1]) {
			shortened[i]++
		}
	}
	cut = Cut{Messages: len(messages), Bytes: was, Shortened: shortened[0]}
	if size(out) <= room {
		return out, cut, true
	}
	for from := 1; from <= prompt; from++ { // a run of the session begins with its prompt
		if from < prompt && !opens(out[from]) {
			continue
		}
		if kept := out[from:]; size(kept) <= room {
			cut.To, cut.Shortened = from, shortened[from]
			return kept, cut, true
		}
	}
	head, rest := out[prompt], out[prompt+1:]
	for from := 1; from < len(rest); from++ {
		if rest[from].Role != turn.Assistant { // results stand behind the calls that they are of
			continue
		}
		note := turn.Part{Text: fmt.Sprintf("[%d messages of this task are left out here: the window is full]", from)}
		kept := append([]turn.Message{{Role: turn.User, Parts: append(append([]turn.Part(nil), head.Parts...), note)}}, rest[from:]...)
		if size(kept) <= room {
			cut.From, cut.To, cut.Shortened = prompt+1, prompt+1+from, shortened[prompt+1+from]
			if prompt > 0 {
				cut.From = 0 // the prompt itself stays
			}
			return kept, cut, true
		}
	}
	return nil, Cut{}, false
}

// opens reports whether a message begins a run.
func opens(m turn.Message) bool {
	if m.Role != turn.User {
		return false
	}
	for _, p := range m.Parts {
		if p.Result != nil {
			return false
		}
	}
	return true
}

// short is a message whose results are cut.
func short(m turn.Message) turn.Message {
	parts := make([]turn.Part, len(m.Parts))
	for i, p := range m.Parts {
		if parts[i] = p; p.Result == nil || len(p.Result.Text) <= keepResult {
			continue
		}
		r := *p.Result
		n := keepResult
		for n > 0 && r.Text[n]&0xc0 == 0x80 {
			n--
		}
		r.Text = fmt.Sprintf("%s\n[%d more bytes are left out here: the window is full]", r.Text[:n], len(r.Text)-n)
		parts[i].Result = &r
	}
	return turn.Message{Role: m.Role, Parts: parts}
}

// size is how many bytes messages have, about.
func size(messages []turn.Message) (n int64) {
	for _, m := range messages {
		n += 16
		for _, p := range m.Parts {
			n += int64(16 + len(p.Text) + len(p.Opaque))
			if c := p.Call; c != nil {
				n += int64(len(c.ID) + len(c.Name) + len(c.Arguments))
			}
			if r := p.Result; r != nil {
				n += int64(len(r.ID) + len(r.Text))
			}
		}
	}
	return n
}
