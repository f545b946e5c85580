//go:build !linux || !cgo

package libseccomp

import "testing"

func TestCell(t *testing.T) { t.Skipf("needs libseccomp: %v", load()) }
