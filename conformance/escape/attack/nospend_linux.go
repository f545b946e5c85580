//go:build !spend

package main

// spendProbes are in the build with the tag.
var spendProbes map[string]probe
