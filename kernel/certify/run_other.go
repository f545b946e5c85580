//go:build !linux

package certify

import (
	"context"
	"errors"

	"palyra/internal/fault"
)

// Run needs Linux: there are no cells elsewhere.
func Run(context.Context, Options) (*Report, error) {
	_ = newReport
	_ = wanted
	return nil, fault.New(fault.Unsupported, "platform_unsupported", "certify the sandbox", errors.New("only Linux has one"))
}
