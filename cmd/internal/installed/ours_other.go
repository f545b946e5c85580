//go:build !unix

package installed

import "path/filepath"

// resolve looks at no owner and mode: this platform has no mode bits, and no calls
// run on it.
func resolve(path string) (real, hint string, err error) {
	real, err = filepath.EvalSymlinks(path)
	return real, "", err
}
