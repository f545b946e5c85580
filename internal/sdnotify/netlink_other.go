//go:build unix && !linux

package sdnotify

// isNetlink is for Linux.
func isNetlink(int) bool { return false }
