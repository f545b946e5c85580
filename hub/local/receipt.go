package local

import (
	"context"
	"fmt"

	"palyra/crypt/receipt"
	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/kernel/account"
)

// accountBytes is what a statement takes while it is put into rows: a receipt holds it twice.
const accountBytes = 2 * receipt.MaxBundle

func (h *Hub) verifyReceipt(ctx context.Context, c hub.Caller, q hub.ReceiptCheck) (none hub.ReceiptAccount, err error) {
	if n := len(q.Receipt); n == 0 || n > receipt.MaxBundle {
		return none, fault.New(fault.Usage, "invalid_input", "verify receipt", fmt.Errorf("want a receipt of 1 to %d bytes", receipt.MaxBundle))
	}
	release, err := h.reads(ctx, c, accountBytes)
	if err != nil {
		return none, err
	}
	defer release()
	ctx, over, err := h.prove(ctx, c)
	if err != nil {
		return none, err
	}
	defer over()
	v, err := h.k.VerifyReceipt(ctx, q.Receipt)
	if err != nil {
		return none, err
	}
	s, err := account.Parse(v.Payload)
	if err != nil {
		return none, err
	}
	out := hub.ReceiptAccount{Origin: v.Origin, Index: v.Index, Size: v.Size, Root: canon.Digest(v.Root), Key: v.KeyHint, Outcome: v.Outcome, Rows: []hub.ReceiptRow{}}
	if s.Call != nil {
		out.CallID = s.Call.Predicate.CallID
	}
	for _, r := range s.Rows().All {
		out.Rows = append(out.Rows, hub.ReceiptRow(r))
	}
	return out, nil
}
