// Package isolatetest is the contract that every isolate.Runner is put through.
//
//	func TestNative(t *testing.T) { isolatetest.Run(t, isolatetest.Subject{Tier: tier.C, New: ..., Grant: ...}) }
//
// It runs real programs (/bin/sh and what Debian's essential packages hold), so
// it is for Linux hosts. It shows that a runner keeps its promises for programs
// that behave; what hostile ones can do is conformance/escape.
package isolatetest
