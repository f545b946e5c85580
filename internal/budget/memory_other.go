//go:build !linux

package budget

// Memory knows nothing here.
func Memory() (bytes int64, limited bool) { return 0, false }

// Files knows nothing here.
func Files() int64 { return 0 }
