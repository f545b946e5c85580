package store

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"palyra/internal/canon"
)

// plainBackup is the plain text of a small backup.
func plainBackup(t testing.TB, names ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	put := func(name, body string) {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: int64(len(body)), Format: tar.FormatPAX}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, body); err != nil {
			t.Fatal(err)
		}
	}
	put(backupMark, backupForm)
	m := Manifest{Version: 1, JournalSize: -1, Files: []ManifestFile{}}
	for _, n := range names {
		put(n, "x")
		m.Files = append(m.Files, ManifestFile{Path: n, Size: 1, Digest: canon.Sum([]byte("x"))})
	}
	text, err := canon.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	put(manifestFile, string(text))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// FuzzArchive: whatever a well encrypted backup holds, its files stay below the
// folder they are restored to, and are the ones that the manifest lists.
func FuzzArchive(f *testing.F) {
	good := plainBackup(f, "store/palyra.db", "journal/tile/0/000", "trust/log.vkey")
	if _, err := archive(bytes.NewReader(good), func(string, io.Reader) error { return nil }); err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(plainBackup(f))
	f.Add(plainBackup(f, "../x"))
	f.Add(plainBackup(f, "keys/att.key"))
	f.Add(good[:len(good)-1024])
	f.Add(bytes.Replace(good, []byte("store/"), []byte("/tore/"), 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		var got []ManifestFile
		m, err := archive(bytes.NewReader(b), func(name string, r io.Reader) error {
			rel, err := filepath.Rel("/root", filepath.Join("/root", filepath.FromSlash(name)))
			if err != nil || !filepath.IsLocal(rel) || rel != filepath.FromSlash(name) || !fs.ValidPath(name) || strings.Contains(name, "/.") {
				t.Errorf("%q leads out", name)
			}
			body, err := io.ReadAll(r)
			got = append(got, ManifestFile{Path: name, Size: int64(len(body)), Digest: canon.Sum(body)})
			return err
		})
		if err != nil {
			return
		}
		if len(m.Files) != len(got) {
			t.Fatalf("the manifest lists %d files, %d were read", len(m.Files), len(got))
		}
		for i := range got {
			if got[i] != m.Files[i] {
				t.Errorf("%+v, the manifest says %+v", got[i], m.Files[i])
			}
		}
	})
}
