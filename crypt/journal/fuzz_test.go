package journal

import (
	"bytes"
	"testing"

	"golang.org/x/mod/sumdb/tlog"
)

// seed adds the vectors of one kind.
func seed(f *testing.F, kind string) (vkey string) {
	f.Helper()
	for _, v := range readVectors(f) {
		if v.header["kind"] == kind {
			f.Add(v.body)
			vkey = v.header["vkey"]
		}
	}
	return vkey
}

// FuzzCheckpoint: what opens has one spelling, the one that its key makes.
func FuzzCheckpoint(f *testing.F) {
	vkey := seed(f, "checkpoint")
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := OpenCheckpoint(b, vkey)
		if err != nil {
			return
		}
		if c.Size != 5 { // the key signed one checkpoint in its life
			t.Fatalf("a checkpoint of size %d opens", c.Size)
		}
	})
}

// FuzzBundle: what decodes encodes to the same bytes.
func FuzzBundle(f *testing.F) {
	seed(f, "bundle")
	f.Fuzz(func(t *testing.T, b []byte) {
		for n := range 4 {
			if leaves, err := decodeBundle(b, n); err == nil && (len(leaves) != n || !bytes.Equal(encodeBundle(leaves), b)) {
				t.Fatalf("bundle of %d is not what it encodes to", n)
			}
		}
	})
}

// FuzzContents: slots of a head that decodes lie within the file, one after the
// other.
func FuzzContents(f *testing.F) {
	seed(f, "content")
	f.Fuzz(func(t *testing.T, b []byte) {
		slots, err := decodeContentHead(b, 256, int64(len(b)))
		if err != nil {
			return
		}
		at := int64(contentHead)
		for i, s := range slots {
			if s.off != at || s.length < 0 {
				t.Fatalf("slot %d at %d, want %d", i, s.off, at)
			}
			at += int64(s.length)
		}
		if at != int64(len(b)) {
			t.Fatalf("slots end at %d of %d", at, len(b))
		}
	})
}

// FuzzWAL: no file makes recovery panic or run off, and none that the key did
// not sign comes up with entries.
func FuzzWAL(f *testing.F) {
	vkey := seed(f, "wal")
	good := make(map[tlog.Hash]bool)
	for _, v := range readVectors(f) {
		if w, err := newWAL(&memory{b: v.body}, int64(len(v.body))); err == nil {
			if st, err := w.load(f.TempDir(), OneKey(vkey), nil, nil); err == nil {
				for n := range st.tree.size + 1 {
					if r, err := st.tree.rootAt(n); err == nil {
						good[r] = true
					}
				}
			}
		}
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := newWAL(&memory{b: b}, int64(len(b)))
		if err != nil {
			return
		}
		st, err := w.load(dir, OneKey(vkey), nil, nil)
		if err != nil {
			return
		}
		if st.tree.size > 0 && !good[st.tree.root] {
			t.Fatalf("a tree of size %d comes up that nobody signed", st.tree.size)
		}
		if w.end+st.torn != int64(len(b)) {
			t.Fatalf("records end at %d, %d torn, of %d", w.end, st.torn, len(b))
		}
	})
}
