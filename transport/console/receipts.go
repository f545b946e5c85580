package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"palyra/hub"
	"palyra/internal/fault"
)

// checked is a receipt on a page: what it says, or that it isn't to be believed.
type checked struct {
	hub.ReceiptAccount
	Parts  []part
	Entry  string // of this palyrad's journal that it was asked for by; "" if it came in a form
	Reason string // the code of what doesn't hold; "" if all does
	Broken string // the same in words
}

// part is a table of a receipt's account.
type part struct {
	Title string
	Rows  []hub.ReceiptRow
	Basis bool // some row has one
}

// parts are the titles of an account's parts, in the order of the page.
var parts = []struct{ part, title string }{
	{"ending", "Outcome"},
	{"controls", "Controls that were seen in force"},
	{"egress", "Hosts"},
	{"left", "Files that were left in wait"},
	{"request", "What was asked for"},
	{"decision", "Who asked, and who allowed it"},
}

// receipts shows the form that takes a receipt from elsewhere.
func (t *turn) receipts() error { return t.still("receipts", "Receipts", struct{}{}) }

// receipt shows one of this journal.
func (t *turn) receipt() error {
	b, err := t.bundleOf()
	if err != nil {
		return err
	}
	return t.account(b, t.words[1])
}

// verifyReceipt shows one that a form has.
func (t *turn) verifyReceipt() error {
	const noJSON = "receipt_syntax"
	text := strings.TrimSpace(t.v.Form.Get("receipt"))
	if !json.Valid([]byte(text)) {
		return t.still("receipt", "Receipt", checked{Broken: fault.Says(noJSON), Reason: noJSON})
	}
	return t.account([]byte(text), "")
}

func (t *turn) bundleOf() ([]byte, error) {
	n, err := strconv.ParseUint(t.words[1], 10, 63)
	if err != nil {
		return nil, fault.New(fault.NotFound, "not_found", "find page", nil)
	}
	return ask(t, hub.GetReceipt, n)
}

// account has palyrad verify a receipt and shows what it says. Of one that doesn't verify nothing
// is shown but that.
func (t *turn) account(b []byte, entry string) error {
	v := checked{Entry: entry}
	a, err := ask(t, hub.VerifyReceipt, hub.ReceiptCheck{Receipt: b})
	switch {
	case fault.KindOf(err) == fault.Integrity:
		v.Reason = fault.ReasonOf(err)
		v.Broken = fault.Says(v.Reason)
	case err != nil:
		return err
	default:
		v.ReceiptAccount = a
		v.Parts = partsOf(a.Rows)
	}
	return t.still("receipt", "Receipt", v)
}

// partsOf sorts rows by their parts. A row without a name goes on with the one before.
func partsOf(rows []hub.ReceiptRow) (out []part) {
	for _, p := range parts {
		v := part{Title: p.title}
		for _, r := range rows {
			if r.Part == p.part {
				v.Rows, v.Basis = append(v.Rows, r), v.Basis || r.Basis != ""
			}
		}
		if len(v.Rows) > 0 {
			out = append(out, v)
		}
	}
	return out
}

// bundle is the receipt as a file.
func (t *turn) bundle() error {
	b, err := t.bundleOf()
	if err != nil {
		return err
	}
	secure(t.w)
	h := t.w.Header()
	h.Set("Content-Type", hub.MediaBundle)
	h.Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", "palyra-receipt-"+t.words[1]+".sigstore.json"))
	h.Set("X-Content-Type-Options", "nosniff")
	t.w.WriteHeader(http.StatusOK)
	_, _ = t.w.Write(b) // the browser may have gone
	return nil
}
