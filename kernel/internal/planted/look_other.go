//go:build !linux

package planted

import (
	"os"

	"palyra/crypt/receipt"
)

// Look is a look that has begun. Nothing runs on other systems, so nothing is
// looked for there.
type Look struct{}

// Begin notes nothing.
func Begin(*os.File) *Look { return &Look{} }

// End says that nobody looked.
func (*Look) End(_ bool, l Limits) *receipt.Planted {
	r := newReport(l.orDefaults())
	r.missed[noPlatform] = 1
	return r.planted(0, false)
}

// List lists nothing.
func (*Look) List(int) {}

// Changes says that nobody looked.
func (*Look) Changes() ([]Change, int64) { return nil, 1 }
