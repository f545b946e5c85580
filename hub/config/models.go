package config

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"palyra/agentloop/turn"
	"palyra/call/egress"
	"palyra/call/egress/reach"
	"palyra/call/egress/target"
	"palyra/crypt/vault"
)

// KindEmbeddings is the kind of a model that makes vectors of texts.
const KindEmbeddings = "embeddings"

// Embeds reports whether the model makes vectors of texts, and nothing else.
func (m *Model) Embeds() bool { return m.Kind == KindEmbeddings }

// ModelKey is the variable that holds the placeholder of a model's key.
const ModelKey = "MODEL_KEY"

// maxModel bounds a provider's name of a model, in bytes, as palyra-fetch has it.
const maxModel = 256

// checkModels checks [models.NAME], and that [agent] and [memory] name one.
func (c *Config) checkModels() (ps []Problem) {
	add := func(key, fix, format string, args ...any) {
		ps = append(ps, Problem{Key: key, Line: c.line(key), Text: fmt.Sprintf(format, args...), Fix: fix})
	}
	for _, name := range slices.Sorted(maps.Keys(c.Models)) {
		m, table := c.Models[name], "models."+name+"."
		if len(m.Model) > maxModel {
			add(table+"model", "", "is longer than %d bytes", maxModel)
		}
		if m.Embeds() {
			if m.Provider == turn.Messages {
				add(table+"kind", `provider = "openai"`, "anthropic has no embeddings")
			}
			for _, k := range []struct{ leaf, value string }{{"fallback", m.Fallback}, {"script", m.Script}} {
				if k.value != "" {
					add(table+k.leaf, "", "is of no use: it makes embeddings")
				}
			}
		}
		switch {
		case m.Provider == "":
			add(table+"provider", "palyra config explain models.NAME.provider", "has no value")
			continue
		case m.Provider == turn.Scripted:
			for _, k := range []struct{ leaf, value string }{{"url", m.URL}, {"key", m.Key}, {"network", m.Network}} {
				if k.value != "" {
					add(table+k.leaf, "", "is of no use: the scripted provider reaches nothing")
				}
			}
			if m.Script != "" && (!filepath.IsAbs(m.Script) || filepath.Clean(m.Script) != m.Script) {
				add(table+"script", "give an absolute path without . and ..", "is no clean absolute path")
			}
			continue
		case m.Script != "":
			add(table+"script", `provider = "scripted"`, "is for the scripted provider alone")
		}
		if m.URL == "" {
			add(table+"url", "palyra config explain models.NAME.url", "has no value")
		} else if leaf, err := m.check(); err != nil {
			add(table+leaf, "palyra config explain models.NAME."+leaf, "%v", err)
		}
	}
	known := func(key, name string) {
		m, ok := c.Models[name]
		switch embeds := key == "memory.embeddings"; {
		case embeds && ok && !m.Embeds():
			add(key, `kind = "embeddings"`, "makes no embeddings")
		case m.Embeds() && !embeds:
			add(key, "", "makes embeddings, and no turns")
		}
		if name != "" && !ok {
			fix := ""
			if n := nearest(name, slices.Sorted(maps.Keys(c.Models))); n != "" {
				fix = fmt.Sprintf("did you mean %s?", n)
			}
			add(key, fix, "is none of the models of this file")
		}
	}
	known("agent.model", c.Agent.Model)
	known("memory.embeddings", c.Memory.Embeddings)
	for _, name := range slices.Sorted(maps.Keys(c.Models)) {
		key := "models." + name + ".fallback"
		known(key, c.Models[name].Fallback)
		seen := []string{name}
		for next := c.Models[name].Fallback; next != ""; next = c.Models[next].Fallback {
			if slices.Contains(seen, next) {
				add(key, "", "leads around: %s", strings.Join(append(seen, next), ", "))
				break
			}
			seen = append(seen, next)
		}
	}
	return ps
}

// check checks where a model is asked. The error is about the key leaf.
func (m *Model) check() (leaf string, err error) {
	at, err := target.Parse(m.URL)
	if err != nil {
		return "url", inner(err)
	}
	u, host := at.URL(), at.Rule().Prefix()
	switch {
	case u.RawQuery != "" || u.ForceQuery:
		return "url", errors.New("has a query: the provider's paths go behind the url")
	case host.IsValid() && host.Addr().IsLoopback():
		return "url", errors.New("leads to the cell's own loopback: use a name of this host that leads there, and network")
	}
	if m.Network != "" {
		if err := checkNetwork(m.Network, at.Rule()); err != nil {
			return "network", err
		}
	}
	switch {
	case at.TLS():
	case m.Key != "":
		return "key", errors.New("is sent over https:// alone")
	case m.Network == "":
		return "url", errors.New("is http://, for a server in a network of yours alone: name it in network")
	}
	if m.Key != "" {
		if _, err := vault.ParseRef(m.Key); err != nil {
			return "key", inner(err)
		}
		if _, err := egress.ParseUses([]string{m.Use()}); err != nil {
			return "key", inner(err)
		}
	}
	return "", nil
}

// checkNetwork checks a rule for the network of a model's server.
func checkNetwork(text string, host egress.Rule) error {
	r, err := egress.ParseRule(text)
	if err != nil {
		return inner(err)
	}
	p := r.Prefix()
	switch {
	case !p.IsValid():
		return errors.New("is no network and port, such as 10.1.0.0/16:8000")
	case r.Port() != host.Port():
		return fmt.Errorf("has the port %d, and the url's is %d", r.Port(), host.Port())
	case r != r.Bare():
		return errors.New("has a rate")
	}
	if _, private := reach.Touches(p); !private {
		return errors.New("has no private or loopback address: the url's host is enough")
	}
	if a := host.Prefix(); a.IsValid() && !p.Contains(a.Addr()) {
		return errors.New("hasn't the url's address")
	}
	return nil
}

// Place is where a request has the model's key, as an egress.Place as text.
func (m *Model) Place() string {
	if m.Provider == turn.Messages {
		return "header:x-api-key"
	}
	return "header:authorization"
}

// Use is the use of the model's key, in each request behind its url: an egress.Use as text.
func (m *Model) Use() string {
	at, err := target.Parse(m.URL)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s=%s %s POST %s%s", ModelKey, m.Key, m.Place(), at.Rule(), strings.TrimRight(at.URL().EscapedPath(), "/"))
}

// inner leaves out what was read, which the problem's key says.
func inner(err error) error {
	if e := errors.Unwrap(err); e != nil {
		return e
	}
	return err
}
