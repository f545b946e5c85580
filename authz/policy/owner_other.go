//go:build !unix

package policy

import (
	"errors"
	"io/fs"

	"palyra/internal/fault"
)

// onlyOursToWrite refuses every directory, because it can't tell here who may write a file.
// Default still works.
func onlyOursToWrite(fs.FileInfo) error {
	return fault.New(fault.Unsupported, "platform_unsupported", "check policy directory",
		errors.New("this platform's access lists are not understood"))
}
