package hub

import (
	"errors"
	"strings"

	"palyra/agentloop/turn"
)

// ToolModel is the tool that asks a model once.
const ToolModel = turn.Tool

// Said is what a model said in one turn, for people.
type Said struct {
	Text  string
	Calls []turn.Call // that it proposes
	Error string      // instead of an answer
	Cut   bool        // there is more in the step's output
}

// SaidIn reads a turn of a model from the beginning or the end of its step's output. Lines that
// aren't whole are left out.
func SaidIn(output string) (s Said) {
	if _, rest, ok := strings.Cut(output, "\n"); ok && !strings.HasPrefix(output, "{") {
		output, s.Cut = rest, true
	}
	for line := range strings.Lines(output) {
		a, err := turn.ReadAnswer(strings.NewReader(line))
		if err != nil && !errors.Is(err, turn.ErrCut) {
			s.Cut = true
			continue
		}
		s.Text += a.Text()
		for _, c := range a.Calls() {
			s.Calls = append(s.Calls, *c)
		}
		if a.Error != nil {
			s.Error = a.Error.Error()
		}
	}
	return s
}
