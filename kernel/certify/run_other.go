//go:build !linux

package certify

import (
	"context"

	"palyra/internal/fault"
)

// Run needs Linux: there are no cells elsewhere.
func Run(context.Context, Options) (*Report, error) {
	_ = newReport
	_ = wanted
	return nil, fault.New(fault.Unsupported, "sandbox_certificate", "certify the sandbox", nil)
}
