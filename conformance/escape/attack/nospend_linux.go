//go:build !spend

package main

// spendProbes are in the build with the tag.
func spendProbes() map[string]probe { return nil }
