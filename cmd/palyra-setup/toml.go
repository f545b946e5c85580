package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"

	"github.com/BurntSushi/toml"
)

// Codex's configuration is TOML. Setup owns the lines between its marks and the lines with
// its mark; each edit is read back, and must have changed nothing else.
const (
	tomlBegin = "# palyra setup: these lines are taken out by palyra setup codex --undo\n"
	tomlEnd   = "# palyra setup: end\n"
	tomlLine  = "shell_tool = false # palyra setup\n"
)

var (
	tomlBlock  = regexp.MustCompile(`(?ms)^` + regexp.QuoteMeta(tomlBegin) + `.*?^` + regexp.QuoteMeta(tomlEnd))
	tomlOwn    = regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(tomlLine))
	tomlHeader = regexp.MustCompile(`(?m)^[ \t]*\[[ \t]*features[ \t]*\][ \t]*(#[^\n]*)?\r?\n`)
)

func readTOML(text []byte) (map[string]any, error) {
	v := map[string]any{}
	if err := toml.Unmarshal(text, &v); err != nil {
		if p, ok := errors.AsType[toml.ParseError](err); ok {
			return nil, fmt.Errorf("line %d: not TOML: %s", p.Position.Line, p.Message)
		}
		return nil, fmt.Errorf("not TOML: %w", err)
	}
	return v, nil
}

// withoutTOML takes out what setup put in.
func withoutTOML(text []byte) ([]byte, error) {
	want, err := readTOML(text)
	if err != nil {
		return nil, err
	}
	out := text
	if loc := tomlBlock.FindIndex(text); loc != nil {
		block, err := readTOML(text[loc[0]:loc[1]])
		if err != nil {
			return nil, err
		}
		if subtract(want, block) != nil {
			return nil, errors.New("the lines between palyra setup's marks belong to what stands around them")
		}
		out = append(bytes.Clone(text[:loc[0]]), text[loc[1]:]...)
	}
	if loc := tomlOwn.FindIndex(out); loc != nil {
		if f, ok := want["features"].(map[string]any); ok {
			delete(f, "shell_tool")
		}
		out = append(bytes.Clone(out[:loc[0]]), out[loc[1]:]...)
	}
	return out, changesTo(out, want)
}

// changesTo reports an error if a text doesn't say want. Empty tables don't count.
func changesTo(text []byte, want map[string]any) error {
	got, err := readTOML(text)
	if err != nil {
		return fmt.Errorf("setup's edit breaks it: %w", err)
	}
	if !reflect.DeepEqual(prune(got), prune(want)) {
		return errors.New("setup's edit would change other settings, such as lines behind its own that count to its table")
	}
	return nil
}

// subtract removes the values of b from a; an error says that one isn't there.
func subtract(a, b map[string]any) error {
	for k, v := range b {
		inner, table := v.(map[string]any)
		outer, both := a[k].(map[string]any)
		switch {
		case table && both:
			if err := subtract(outer, inner); err != nil {
				return err
			}
		case reflect.DeepEqual(a[k], v):
			delete(a, k)
		default:
			return fmt.Errorf("%q differs", k)
		}
	}
	return nil
}

// prune removes empty tables.
func prune(m map[string]any) map[string]any {
	for k, v := range m {
		if inner, ok := v.(map[string]any); ok && len(prune(inner)) == 0 {
			delete(m, k)
		}
	}
	return m
}

// withTOML puts setup's lines into a text that has none.
func withTOML(text []byte, s server, off bool) ([]byte, error) {
	want, err := readTOML(text)
	if err != nil {
		return nil, err
	}
	servers, ok := want["mcp_servers"].(map[string]any)
	if _, taken := servers["palyra"]; taken || want["mcp_servers"] != nil && !ok {
		return nil, errTaken
	}
	features, ok := want["features"].(map[string]any)
	shell := features["shell_tool"]
	switch {
	case !off || shell == false:
		off = false // nothing to do
	case shell != nil || want["features"] != nil && !ok:
		return nil, errors.New("features.shell_tool is set to something else")
	}
	quote := func(v any) string { b, _ := json.Marshal(v); return string(b) } // JSON's strings are TOML's
	block := ""
	out := bytes.Clone(text)
	if len(out) > 0 && out[len(out)-1] != '\n' {
		out = append(out, '\n')
	}
	if loc := tomlHeader.FindIndex(out); off && loc != nil {
		out = append(out[:loc[1]:loc[1]], append([]byte(tomlLine), out[loc[1]:]...)...)
	} else if off && features != nil {
		return nil, errors.New("features is no table with a line [features]")
	} else if off {
		block = "[features]\nshell_tool = false\n"
	}
	block += fmt.Sprintf("[mcp_servers.palyra]\ncommand = %s\nargs = %s\ndefault_tools_approval_mode = \"approve\"\ntool_timeout_sec = 3600\n", quote(s.Command), quote(s.Args))
	out = append(out, tomlBegin+block+tomlEnd...)
	if off {
		f := map[string]any{"shell_tool": false}
		maps.Copy(f, features)
		want["features"] = f
	}
	if servers == nil {
		servers = map[string]any{}
		want["mcp_servers"] = servers
	}
	var args []any
	for _, a := range s.Args {
		args = append(args, a)
	}
	servers["palyra"] = map[string]any{"command": s.Command, "args": args, "default_tools_approval_mode": "approve", "tool_timeout_sec": int64(3600)}
	return out, changesTo(out, want)
}
