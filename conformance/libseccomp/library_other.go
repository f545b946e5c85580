//go:build !linux || !cgo

package libseccomp

import "errors"

// load says that there is no library.
func load() error { return errors.New("load libseccomp: built without cgo or not for Linux") }
