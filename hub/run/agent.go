package run

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"palyra/agentloop/turn"
	"palyra/call"
	"palyra/hub"
)

// maxFunctions bounds the functions of an agent, in bytes of names, descriptions and schemas.
const maxFunctions = 256 << 10

// maxID bounds the id of a call, in bytes.
const maxID = 256

// checkAgent refuses what is no task of an agent.
func checkAgent(a *hub.Agent) error {
	for _, text := range texts(a) {
		if !utf8.ValidString(text) {
			return errors.New("a prompt, and what comes with it, is text in UTF-8")
		}
	}
	said := strings.TrimSpace(a.Prompt) != ""
	functions, results := 0, 0
	for _, f := range a.Functions {
		functions += len(f.Name) + len(f.Description) + len(f.Schema)
	}
	for i, r := range a.Results {
		results += len(r.Text)
		switch again := slices.IndexFunc(a.Results, func(o hub.AgentResult) bool { return o.ID == r.ID }); {
		case r.ID == "" || len(r.ID) > maxID:
			return fmt.Errorf("result %d: the id of a call has 1 to %d bytes", i, maxID)
		case again != i:
			return fmt.Errorf("two results of the call %q", r.ID)
		}
	}
	switch {
	case len(a.Prompt) > hub.MaxPrompt || !said && (a.Prompt != "" || len(a.Results) == 0):
		return fmt.Errorf("a prompt is text of 1 to %d bytes", hub.MaxPrompt)
	case len(a.Instructions) > hub.MaxInstructions:
		return fmt.Errorf("instructions of more than %d bytes", hub.MaxInstructions)
	case results > hub.MaxPrompt:
		return fmt.Errorf("results of more than %d bytes", hub.MaxPrompt)
	case len(a.Results) > turn.MaxCalls:
		return fmt.Errorf("more than %d results", turn.MaxCalls)
	case len(a.Functions) > hub.MaxFunctions || functions > maxFunctions:
		return fmt.Errorf("more than %d functions, or %d bytes of them", hub.MaxFunctions, maxFunctions)
	case a.Turns < 0 || a.MaxTokens < 0:
		return errors.New("a bound is negative")
	}
	return nil
}

// texts are the pieces of text that a caller has a model told.
func texts(a *hub.Agent) []string {
	all := []string{a.Prompt, a.Instructions}
	for _, f := range a.Functions {
		all = append(all, f.Name, f.Description, string(f.Schema))
	}
	for _, r := range a.Results {
		all = append(all, r.ID, r.Text)
	}
	return all
}

// inputsOf is what the first turn of a run brings into its session. Results of functions may be of
// any origin that their caller has: they count as a foreign tool's.
func inputsOf(a *hub.Agent, run string) (in call.Inputs) {
	origins := []string{call.OriginPerson}
	if len(a.Results) > 0 {
		origins = append(origins, call.OriginTool)
	}
	for _, o := range origins {
		in = in.Join(call.Input{Origin: o, Tool: turn.Tool, Run: run, Time: time.Now().UTC()})
	}
	return in
}
