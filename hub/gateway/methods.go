package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// methods are what a server can be asked for besides its tools, with the parameters that each has.
// In a call of mcp.call, and so in what policy, approver and journal see, a method stands for a
// tool's name, and its parameters for arguments. Their answers are content, and nothing of them is
// pinned.
var methods = map[string][]string{
	hub.MethodListResources: {"cursor"},
	hub.MethodListTemplates: {"cursor"},
	hub.MethodReadResource:  {"uri"},
	hub.MethodListPrompts:   {"cursor"},
	hub.MethodGetPrompt:     {"name", "arguments"},
}

// methodOf returns what is called for the name of a method, nil for another name.
func methodOf(name string) *hub.ServerTool {
	if _, ok := methods[name]; !ok {
		return nil
	}
	return &hub.ServerTool{Name: name, Pin: canon.Sum([]byte("palyra mcp method v1\n" + name + "\n"))}
}

// checkParameters refuses parameters that a method hasn't: the protocol's own, such as _meta, are
// palyrad's to set.
func checkParameters(name string, arguments json.RawMessage) error {
	known, ok := methods[name]
	if !ok {
		return nil
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(arguments, &m); err != nil {
		return fault.New(fault.Usage, "invalid_input", "check "+name, errors.New("its parameters are an object"))
	}
	for member, value := range m {
		switch {
		case !slices.Contains(known, member):
			return fault.New(fault.Usage, "invalid_input", "check "+name, fmt.Errorf("it has no parameter %.80q, only %s", member, strings.Join(known, ", ")))
		case member == "arguments" && !isObject(value), member != "arguments" && value[0] != '"':
			return fault.New(fault.Usage, "invalid_input", "check "+name, fmt.Errorf("the parameter %s is of another type", member))
		}
	}
	return nil
}
