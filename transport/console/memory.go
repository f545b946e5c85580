package console

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"palyra/hub"
	"palyra/internal/fault"
)

// recalled is the visitor's memory on a page. Reading or changing it takes a call, which a click
// makes.
type recalled struct {
	State  hub.MemoryState
	Locked bool // palyrad opens no vault, so nothing is remembered
	Query  string
	hub.MemoryResult
	Made bool // a call, the one of Run
	Done bool // it did what it was to do
	New  hub.NewMemoryItem
}

// pageOfMemory bounds the items that a call for a page finds.
const pageOfMemory = 32

// memory shows how much is remembered, which makes no call.
func (t *turn) memory() error {
	m, err := t.recalled()
	if err != nil {
		return err
	}
	return t.showStill("memory", "Memory", m)
}

func (t *turn) recalled() (m recalled, err error) {
	if m.State, err = ask(t, hub.GetMemory, hub.None{}); err != nil {
		return m, err
	}
	v, err := t.vault()
	if fault.KindOf(err) == fault.Denied { // a call says it
		return m, nil
	}
	m.Locked = err == nil && v.State == nil
	return m, err
}

// findMemory searches, or lists if there is nothing to search for.
func (t *turn) findMemory() error {
	query := strings.TrimSpace(t.v.Form.Get("query"))
	if query != "" {
		return t.shownMemory(query, hub.NewMemoryItem{}, func() (hub.MemoryResult, error) {
			return attend(t, hub.SearchMemory, hub.MemorySearch{Query: query, Limit: pageOfMemory})
		})
	}
	var before int64
	if s := t.v.Form.Get("before"); s != "" {
		var err error
		if before, err = strconv.ParseInt(s, 10, 64); err != nil {
			return fault.New(fault.Usage, "invalid_input", "list memory", errors.New("the form lacks where the page begins"))
		}
	}
	return t.shownMemory("", hub.NewMemoryItem{}, func() (hub.MemoryResult, error) {
		return attend(t, hub.ListMemory, hub.MemoryQuery{Before: before, Limit: pageOfMemory})
	})
}

// shownMemory makes a call and shows what came of it.
func (t *turn) shownMemory(query string, n hub.NewMemoryItem, call func() (hub.MemoryResult, error)) error {
	r, err := call()
	if err != nil {
		return err
	}
	m, err := t.recalled()
	if err != nil {
		return err
	}
	m.Query, m.New, m.MemoryResult, m.Made = query, n, r, true
	if m.Run, m.Done, err = t.one(r.Run); err != nil {
		return err
	}
	return t.still("memory", "Memory", m)
}

// changeMemory makes a call that changes what is remembered. The page after it says did, or why it
// isn't done.
func (t *turn) changeMemory(did string, n hub.NewMemoryItem, call func() (hub.MemoryResult, error)) error {
	r, err := call()
	if err != nil {
		return err
	}
	if _, done, err := t.one(r.Run); err != nil {
		return err
	} else if done {
		return t.see("memory", did)
	}
	return t.shownMemory("", n, func() (hub.MemoryResult, error) { return r, nil })
}

// addMemory has what the visitor wrote remembered.
func (t *turn) addMemory() error {
	f := t.v.Form
	n := hub.NewMemoryItem{Text: strings.ReplaceAll(f.Get("text"), "\r\n", "\n")} // as forms are sent
	for tag := range strings.SplitSeq(f.Get("tags"), ",") {
		if tag = strings.TrimSpace(tag); tag != "" {
			n.Tags = append(n.Tags, tag)
		}
	}
	if day := f.Get("expires"); day != "" {
		n.Expires = day + "T00:00:00Z"
	}
	return t.changeMemory("remembered", n, func() (hub.MemoryResult, error) {
		return attend(t, hub.AddMemory, hub.MemoryAdd{Items: []hub.NewMemoryItem{n}})
	})
}

// forgetMemory forgets the items that are ticked.
func (t *turn) forgetMemory() error {
	ids := slices.DeleteFunc(slices.Clone(t.v.Form["item"]), func(id string) bool { return id == "" })
	if len(ids) == 0 {
		return fault.New(fault.Usage, "invalid_input", "forget memory", errors.New("no item is ticked"))
	}
	return t.changeMemory("forgotten", hub.NewMemoryItem{}, func() (hub.MemoryResult, error) {
		return attend(t, hub.ForgetMemory, hub.MemoryForget{IDs: ids})
	})
}
