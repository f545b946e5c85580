//go:build !linux

package budget

// Memory knows nothing here.
func Memory() (bytes int64, limited bool) { return 0, false }
