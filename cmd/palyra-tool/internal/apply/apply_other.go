//go:build !linux

package apply

import (
	"errors"

	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

var errPlatform = fault.New(fault.Unsupported, "platform_unsupported", "apply changes", errors.New("only Linux has staged workspaces"))

// Apply does the job in a workspace, whole or not at all.
func (j *Job) Apply(string) (*toolproto.ChangesResult, error) { return nil, errPlatform }

// Recover ends what a killed process left.
func (j *Job) Recover(string) (*toolproto.ChangesResult, error) { return nil, errPlatform }
