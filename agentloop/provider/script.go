package provider

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"palyra/agentloop/turn"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// last is what stands in strings of a script's inputs for the text of the last result.
const last = "{{last}}"

// Play gives the answer of r's script to emit, word by word. The error is a *turn.Error for one of
// the script and for an answer that exceeds a bound, else emit's, or it says what is wrong with the
// script.
func Play(r *turn.Request, emit func(turn.Event) error) error {
	wrong := func(err error) error { return fault.New(fault.Usage, "invalid_input", "play script", err) }
	var script turn.Script
	if len(r.Script) == 0 {
		return wrong(errors.New("the request has none"))
	}
	if err := canon.Decode(r.Script, &script, canon.Limits{Bytes: turn.MaxRequest, Depth: 64}); err != nil {
		return wrong(err)
	}
	n, result := 0, ""
	for _, m := range r.Messages {
		if m.Role == turn.Assistant {
			n++
		}
		for _, p := range m.Parts {
			if p.Result != nil {
				result = p.Result.Text
			}
		}
	}
	of := turn.ScriptTurn{Text: "the script is over"}
	if n < len(script.Turns) {
		of = script.Turns[n]
	}
	if of.Error != nil {
		if of.Error.Class == "" {
			return wrong(fmt.Errorf("turn %d: its error has no class", n))
		}
		return of.Error
	}
	if of.End == "" {
		of.End = turn.EndStop
	}
	switch of.End {
	case turn.EndStop, turn.EndCalls, turn.EndLength, turn.EndRefused:
	default:
		return wrong(fmt.Errorf("turn %d: no end is called %.80q", n, of.End))
	}
	s := &sink{emit: emit, ids: make(map[string]bool)}
	for _, piece := range strings.SplitAfter(of.Text, " ") {
		if err := s.say(piece); err != nil {
			return err
		}
	}
	for i, c := range of.Calls {
		input, err := canon.Canonical(c.Input)
		if err != nil {
			return wrong(fmt.Errorf("turn %d, call %d: %w", n, i, err))
		}
		if err := s.fits(bytes.Count(input, []byte(last)) * len(result)); err != nil {
			return err
		}
		var v any
		if err := json.Unmarshal(input, &v); err != nil {
			return wrong(fmt.Errorf("turn %d, call %d: %w", n, i, err))
		}
		b, err := canon.Marshal(fill(v, result))
		if err != nil {
			return wrong(fmt.Errorf("turn %d, call %d: %w", n, i, err))
		}
		if err := s.call(&turn.Call{ID: fmt.Sprintf("call_%d_%d", n, i), Name: c.Name, Arguments: string(b)}); err != nil {
			return err
		}
	}
	return s.end(of.End, of.Usage)
}

// fill puts the last result into the strings of v.
func fill(v any, result string) any {
	switch v := v.(type) {
	case string:
		return strings.ReplaceAll(v, last, result)
	case []any:
		for i := range v {
			v[i] = fill(v[i], result)
		}
	case map[string]any:
		for k := range v {
			v[k] = fill(v[k], result)
		}
	}
	return v
}
