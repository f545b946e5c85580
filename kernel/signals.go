package kernel

import (
	"slices"
	"strings"

	"palyra/authz/policy"
	"palyra/internal/signal"
	"palyra/isolate"
	"palyra/kernel/capsule"
)

// toolTurn is palyra/agentloop/turn.Tool. Its standard input is a conversation: what a model is
// told is looked at where that is made.
const toolTurn = "model.turn"

// maxScanned bounds the standard input that is looked at for signs, in bytes: some 30 ms.
const maxScanned = 1 << 20

// signals returns the signs in what a sealed call would take along where it can reach: its
// arguments, its variables and its standard input.
func (s *sealed) signals() []string {
	c := s.capsule
	if len(c.EgressHosts) == 0 && !isolate.AllowsHostNetwork(c.Network) || c.Tool == toolTurn {
		return nil
	}
	var text strings.Builder
	for i, a := range c.Argv {
		text.WriteString(a + "\x00")
		if strings.HasPrefix(a, "--") && i+1 < len(c.Argv) { // an option and its value: "--password", "x"
			text.WriteString(a + "=" + c.Argv[i+1] + "\x00")
		}
	}
	for _, v := range c.Env {
		text.WriteString(v + "\x00")
	}
	texts := []string{text.String()}
	if s.stdin != nil {
		texts = append(texts, s.input(c))
	}
	var signs []string
	if slices.ContainsFunc(texts, signal.Hides) {
		signs = append(signs, policy.SignalHidden)
	}
	if slices.ContainsFunc(texts, func(text string) bool { return len(signal.Secrets(text)) > 0 }) {
		signs = append(signs, policy.SignalSecret)
	}
	return signs
}

// input returns the standard input, as far as it's looked at.
func (s *sealed) input(c *capsule.Capsule) string {
	b := make([]byte, min(c.Stdin.Size, maxScanned))
	n, _ := s.stdin.File.ReadAt(b, 0) // a memfd of ours; a short read shows less
	return string(b[:n])
}
