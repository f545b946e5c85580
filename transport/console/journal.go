package console

import (
	"encoding/json"
	"strconv"

	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// journal shows the newest entries, or those before an index.
func (t *turn) journal() error {
	j, err := ask(t, hub.GetJournal, hub.None{})
	if err != nil {
		return err
	}
	const many = 50
	end := j.Size
	if n, err := strconv.ParseUint(t.r.URL.Query().Get("before"), 10, 63); err == nil && n < end {
		end = n
	}
	from := end - min(end, many)
	var entries []hub.JournalEntry
	if end > 0 {
		p, err := ask(t, hub.ListJournalEntries, hub.JournalQuery{From: from, Limit: int(end - from)})
		if err != nil {
			return err
		}
		for i := len(p.Items) - 1; i >= 0; i-- {
			entries = append(entries, p.Items[i])
		}
	}
	return t.show("journal", "Journal", struct {
		hub.JournalStatus
		Entries []hub.JournalEntry
		Before  uint64 // 0: these are the oldest
	}{j, entries, from})
}

// verified is what verifying the journal found.
type verified struct {
	hub.JournalAudit
	Unknown int    // calls whose outcome isn't known
	Reason  string // the code of what doesn't hold; "" if the journal is sound
	Broken  string // the same in words
}

func (t *turn) verifyJournal() error {
	a, err := ask(t, hub.VerifyJournal, hub.None{})
	v := verified{JournalAudit: a, Unknown: a.Outcomes["outcome_unknown"]}
	if fault.KindOf(err) == fault.Integrity {
		v.Reason = fault.ReasonOf(err)
		v.Broken = fault.Says(v.Reason)
	} else if err != nil {
		return err
	}
	return t.still("journalverify", "Journal verified", v)
}

func (t *turn) entry() error {
	n, err := strconv.ParseUint(t.words[1], 10, 63)
	if err != nil {
		return fault.New(fault.NotFound, "not_found", "find page", nil)
	}
	p, err := ask(t, hub.ListJournalEntries, hub.JournalQuery{From: n, Limit: 1})
	if err != nil {
		return err
	}
	if len(p.Items) == 0 || p.Items[0].Index != n {
		return fault.New(fault.NotFound, "not_found", "find journal entry", nil)
	}
	e := p.Items[0]
	var statement string
	if len(e.Statement) > 0 && string(e.Statement) != "null" {
		var v any
		if err := canon.Decode(e.Statement, &v, canon.Limits{}); err != nil {
			return fault.New(fault.Internal, "internal", "show statement", err)
		}
		b, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			return fault.New(fault.Internal, "internal", "show statement", err)
		}
		statement = string(b)
	}
	return t.show("entry", "Journal entry", struct {
		hub.JournalEntry
		Text string
	}{e, statement})
}
