package selfbench

import "palyra/internal/fault"

// Waiting returns fault.Unsupported as long as palyra-cell makes no cells ahead.
func (*Lab) Waiting(string, int) (*Waiting, error) {
	return nil, fault.New(fault.Unsupported, "no_pool", "measure waiting cells", nil)
}
