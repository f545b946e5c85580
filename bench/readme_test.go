package main

import (
	"os"
	"testing"
)

// TestReadme: the README's figures are those of the committed baseline.
func TestReadme(t *testing.T) {
	r, err := readResults("baseline.json")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	want, err := document(string(b), r)
	if err != nil {
		t.Fatal(err)
	}
	if string(b) != want {
		t.Error("README.md is not what baseline.json says: go run ./bench -document bench/README.md")
	}
}
