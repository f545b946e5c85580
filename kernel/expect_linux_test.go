package kernel

import (
	"testing"

	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
)

// TestExpect: even the first call finds a cell if it was announced.
func TestExpect(t *testing.T) {
	h := openHouse(t, Config{Warm: tier.C, Pool: cell.Pool{Cells: 1, Networks: 1}})
	if err := h.Expect(t.Context(), "", isolate.Limits{}); err != nil {
		t.Fatal(err)
	}
	if o := h.call(proposal("/bin/true"), IO{}); o.Result.Evidence.Cell.Mode != evidence.CellWarm {
		t.Errorf("the cell is %+v", o.Result.Evidence.Cell)
	}
	// Without a warm tier there is nothing to wait for.
	if err := openHouse(t, Config{}).Expect(t.Context(), "", isolate.Limits{}); err != nil {
		t.Error(err)
	}
}
