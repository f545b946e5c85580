package mcp

import "palyra/hub"

// Refusal tells a model of a no in the words of a tool's answer: why nothing ran, a person's
// comment, and that repeating it is useless. about names the call.
func Refusal(d *hub.Denial, outcome, about string) string {
	var a Answer
	a.Refuse(d, outcome, about)
	return a.Message
}
