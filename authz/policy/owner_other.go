//go:build !unix

package policy

import (
	"errors"
	"io/fs"

	"palyra/internal/fault"
)

// onlyOursToWrite cannot tell here who may write a file, so it refuses every
// directory; Default still works.
func onlyOursToWrite(fs.FileInfo) error {
	return fault.New(fault.Unsupported, "policy_owner_unknown", "check policy directory",
		errors.New("this platform's access lists are not understood"))
}
