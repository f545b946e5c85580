package console

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"palyra/hub"
	"palyra/internal/fault"
)

// secrets shows the vault's state, which names no secret. A list of names is a call, so a click
// makes it.
func (t *turn) secrets() error {
	v, err := t.vault()
	if err != nil {
		return err
	}
	return t.still("secrets", "Secrets", v)
}

// kept is the vault on a page, and what a click has listed.
type kept struct {
	State *hub.VaultState // nil: palyrad opens no vault
	Ref   string          // "": the newest version of each secret
	Run   *hub.Run        // that was to list; nil: none was
	// Listed says that it did.
	Listed bool
	List   []listedSecret
	Looked
}

// Looked says how far back uses of secrets were looked for.
type Looked struct {
	Calls int    // the newest, that the visitor may see
	From  uint64 // entry
}

// listedSecret is a version of a secret with the newest calls that had it.
type listedSecret struct {
	hub.SecretInfo
	Read, Sent int    // calls whose program could read it, and that palyra-egress sent it for
	Newest     uint64 // entry of the newest of them
}

func (t *turn) vault() (kept, error) {
	s, err := ask(t, hub.GetVault, hub.None{})
	switch {
	case fault.KindOf(err) == fault.NotFound:
		return kept{}, nil
	case err != nil:
		return kept{}, err
	}
	return kept{State: &s}, nil
}

// listSecrets lists names, or the versions of one secret, by one call in the visitor's name.
func (t *turn) listSecrets() error {
	v, err := t.vault()
	if err != nil {
		return err
	}
	if v.State == nil {
		return fault.New(fault.NotFound, "not_found", "list secrets", errors.New("palyrad opens no vault"))
	}
	v.Ref = strings.TrimSpace(t.v.Form.Get("ref"))
	r, err := attend(t, hub.ListSecrets, hub.SecretQuery{Ref: v.Ref})
	if err != nil {
		return err
	}
	if r.Run, v.Listed, err = t.one(r.Run); err != nil {
		return err
	}
	v.Run = &r.Run
	uses, looked, err := t.uses()
	if err != nil {
		return err
	}
	v.Looked = looked
	for _, s := range slices.Backward(r.Secrets) { // versions come oldest first
		u := uses[usedSecret{s.Ref, s.Version}]
		v.List = append(v.List, listedSecret{s, u.Read, u.Sent, u.Newest})
	}
	if v.Ref == "" {
		slices.Reverse(v.List)
	}
	return t.still("secrets", "Secrets", v)
}

type usedSecret struct {
	ref     string
	version uint64
}

// maxPages bounds the pages of the journal in which uses are looked for.
const maxPages = 4

// uses counts the newest calls that had each version, among those whose statements the visitor may
// see.
func (t *turn) uses() (map[usedSecret]listedSecret, Looked, error) {
	out, seen := make(map[usedSecret]listedSecret), make(map[string]bool)
	j, err := may(t, hub.GetJournal, hub.None{})
	if err != nil || j == nil || j.Size == 0 {
		return out, Looked{}, err
	}
	const each = 100
	looked := Looked{From: j.Size}
	for range maxPages {
		to := looked.From
		from := to - min(to, each)
		p, err := may(t, hub.ListJournalEntries, hub.JournalQuery{From: from, Limit: int(to - from)})
		if err != nil || p == nil {
			return out, looked, err
		}
		if n := uint64(len(p.Items)); n < to-from { // it is too long for an answer: uses before it aren't told
			break
		}
		for _, e := range slices.Backward(p.Items) {
			if e.CallID == "" || seen[e.CallID] || len(e.Statement) == 0 {
				continue
			}
			seen[e.CallID] = true
			looked.Calls++
			for _, u := range usesIn(e.Statement) {
				x := out[u.usedSecret]
				if u.sent {
					x.Sent++
				} else {
					x.Read++
				}
				x.Newest = max(x.Newest, e.Index)
				out[u.usedSecret] = x
			}
		}
		if looked.From = from; from == 0 {
			break
		}
	}
	return out, looked, nil
}

type use struct {
	usedSecret
	sent bool
}

// usesIn returns the secrets in a statement about a call, each once.
func usesIn(statement []byte) (out []use) {
	var s struct {
		Predicate struct {
			Capsule struct {
				Secrets []struct {
					Ref     string
					Version uint64
				}
				EgressSecrets []struct {
					Use     string
					Version uint64
				} `json:"egress_secrets"`
			}
		}
	}
	if json.Unmarshal(statement, &s) != nil {
		return nil
	}
	add := func(u use) {
		if !slices.Contains(out, u) {
			out = append(out, u)
		}
	}
	for _, x := range s.Predicate.Capsule.Secrets {
		add(use{usedSecret{x.Ref, x.Version}, false})
	}
	for _, x := range s.Predicate.Capsule.EgressSecrets {
		_, rest, _ := strings.Cut(x.Use, "=") // NAME=vault://… part host
		ref, _, _ := strings.Cut(rest, " ")
		add(use{usedSecret{ref, x.Version}, true})
	}
	return out
}
