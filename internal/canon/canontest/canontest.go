// Package canontest is what the tests of types that are stored as canonical JSON share.
//
//	func TestBytes(t *testing.T) { canontest.Bytes[Spec](t, "testdata/spec") }
package canontest

import (
	"bytes"
	"os"
	"testing"

	"palyra/internal/canon"
)

// Bytes holds the canonical form of a type to what it was when its format was fixed: of a
// value with every member of then, in base-full.json, and of one with nothing in it, in
// base-empty.json. A member that has come since has to be left out where it is zero.
func Bytes[T any](t *testing.T, base string) {
	t.Helper()
	for _, name := range []string{"full", "empty"} {
		want, err := os.ReadFile(base + "-" + name + ".json")
		if err != nil {
			t.Fatal(err)
		}
		var v T
		if err := canon.Decode(want, &v, canon.Limits{}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, err := canon.Marshal(&v); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v\ngot  %s\nwant %s", name, err, got, want)
		}
	}
}
