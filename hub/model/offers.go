package model

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"palyra/agentloop/turn"
	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// The bounds of what a model is offered. Each turn has all of it.
const (
	maxOffer  = 64 << 10  // bytes of a tool's, as JSON
	maxOffers = 512 << 10 // bytes of all
	maxTools  = 128       // what providers take
	maxName   = 64        // characters
)

// Catalog is the tools that a model is offered, and what a call of each is. It's immutable.
type Catalog struct {
	// ID names the offers: "toolcat_" and 16 digits of their digest.
	ID     string
	Offers []turn.Offer // by name
	// LeftOut are the tools that aren't offered; Server is "" for palyrad's own.
	LeftOut []hub.ToolLeftOut

	calls map[string]called // by the name that is offered
}

// called is the tool that a name stands for; server is "" for one of palyrad's table.
type called struct{ server, tool string }

// Offers makes a Catalog of tools, as palyrad lists them, and of a caller's functions. Tools whose
// names would become one have the digest of what each is in them. A function that can't be offered,
// or has the name of a tool, is an error.
func Offers(tools []hub.Tool, functions ...turn.Offer) (*Catalog, error) {
	c := &Catalog{Offers: []turn.Offer{}, calls: make(map[string]called)}
	plain := make(map[string]int)
	for i := range tools {
		plain[plainName(&tools[i])]++
	}
	total := 0
	for _, f := range functions {
		size, err := check(&f)
		switch {
		case err != nil:
		case !fits(f.Name):
			err = fmt.Errorf("its name isn't 1 to %d of a-z A-Z 0-9 _ -", maxName)
		case plain[f.Name] > 0:
			err = errors.New("another tool has its name, too")
		case total+size > maxOffers/2:
			err = fmt.Errorf("with it there are more than %d bytes of functions", maxOffers/2)
		}
		if err != nil {
			return nil, fault.New(fault.Usage, "invalid_input", fmt.Sprintf("offer function %.80q", f.Name), err)
		}
		total += size
		plain[f.Name]++
		c.Offers = append(c.Offers, f)
	}
	for _, t := range slices.SortedFunc(slices.Values(tools), func(a, b hub.Tool) int {
		return cmp.Or(strings.Compare(a.Server, b.Server), strings.Compare(a.Name, b.Name)) // palyrad's own first
	}) {
		to, err := callOf(&t)
		name := plainName(&t)
		if !fits(name) || plain[name] > 1 {
			name = digestName(name, to)
		}
		o := turn.Offer{Name: name, Description: t.Description, Schema: t.InputSchema}
		var size int
		if err == nil {
			size, err = check(&o)
		}
		switch {
		case err != nil:
		case len(c.Offers) == maxTools:
			err = fmt.Errorf("with it there are more than %d tools", maxTools)
		case total+size > maxOffers:
			err = fmt.Errorf("with it there are more than %d bytes of tools", maxOffers)
		case c.calls[name] != called{}, name != plainName(&t) && plain[name] > 0:
			err = fmt.Errorf("another tool has the name %s, too", name)
		}
		if err != nil {
			c.LeftOut = append(c.LeftOut, hub.ToolLeftOut{Server: t.Server, Tool: cmp.Or(to.tool, t.Name), Why: err.Error()})
			continue
		}
		total += size
		c.calls[name] = to
		c.Offers = append(c.Offers, o)
	}
	slices.SortFunc(c.Offers, func(a, b turn.Offer) int { return strings.Compare(a.Name, b.Name) })
	b, err := canon.Marshal(c.Offers)
	if err != nil {
		return nil, err
	}
	c.ID = "toolcat_" + canon.Sum(b).Hex()[:16]
	return c, nil
}

// callOf returns the tool that is called. The name of a server's tool in a list is one for models
// already; its own stands in its definition.
func callOf(t *hub.Tool) (called, error) {
	if t.Server == "" {
		return called{tool: t.Name}, nil
	}
	var d struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal(t.Definition, &d); err != nil || d.Name == "" {
		return called{server: t.Server}, errors.New("its definition is none")
	}
	return called{t.Server, d.Name}, nil
}

func plainName(t *hub.Tool) string {
	if t.Server != "" {
		return t.Name
	}
	return hub.NameForModels(t.Name)
}

// letters are those that models' interfaces take in a name.
const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

func fits(name string) bool {
	return name != "" && len(name) <= maxName && strings.Trim(name, letters) == ""
}

// digestName is name as models' interfaces take it, with the digest of what it stands for at its
// end, as gateway.MergedName has it.
func digestName(name string, to called) string {
	name = strings.Map(func(r rune) rune {
		if strings.ContainsRune(letters, r) {
			return r
		}
		return '_'
	}, name)
	sum := canon.Sum([]byte(to.server + "\x00" + to.tool))
	tail := "_" + hex.EncodeToString(sum[:4])
	return name[:min(len(name), maxName-len(tail))] + tail
}

// check returns the size of an offer that models can read. Its schema becomes canonical.
func check(o *turn.Offer) (int, error) {
	var s map[string]json.RawMessage // a struct would take "Type", too
	if json.Unmarshal(o.Schema, &s) != nil || string(s["type"]) != `"object"` {
		return 0, errors.New(`its schema has not the type "object"`)
	}
	b, err := canon.Canonical(o.Schema)
	if err != nil {
		return 0, errors.New("its schema isn't JSON of one reading")
	}
	o.Schema = b
	if b, err = canon.Marshal(o); err != nil {
		return 0, errors.New("its description isn't UTF-8")
	}
	if len(b) > maxOffer {
		return 0, fmt.Errorf("it has %d bytes, limit %d", len(b), maxOffer)
	}
	return len(b), nil
}

// Step returns the call that a model proposes: of a tool that it was offered, with arguments as it
// wrote them. An error is the model's mistake, to be told to it.
func (c *Catalog) Step(name, arguments string) (hub.Step, error) {
	op := fmt.Sprintf("call tool %.80q", name)
	to, ok := c.calls[name]
	if !ok {
		return hub.Step{}, fault.New(fault.Usage, "not_found", op, errors.New("it's none of those that were offered"))
	}
	m, err := Arguments(arguments)
	if err != nil {
		return hub.Step{}, fault.New(fault.Usage, "invalid_input", op, err)
	}
	s := hub.Step{Tool: to.tool}
	if to.server != "" {
		s.Tool = hub.ToolMCPCall
		s.Input, err = hub.ServerCall(to.server, to.tool, m)
	} else {
		s.Input, err = canon.Marshal(m)
	}
	return s, err
}

// Arguments reads a call's arguments, as a model wrote them.
func Arguments(text string) (map[string]json.RawMessage, error) {
	m := map[string]json.RawMessage{}
	if strings.TrimSpace(text) == "" { // some models write nothing for none
		return m, nil
	}
	if err := canon.Decode([]byte(text), &m, canon.Limits{Bytes: turn.MaxArguments, Depth: 60}); err != nil {
		return nil, fmt.Errorf("arguments are one JSON object: %w", err)
	}
	if m == nil {
		return nil, errors.New("arguments are one JSON object, not null")
	}
	return m, nil
}
