package store

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

// forge encrypts an archive that a stranger made: anybody may know a recipient.
func (h *house) forge(t testing.TB, files ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	enc, err := age.Encrypt(&b, h.id.Recipient())
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(enc)
	for _, f := range files {
		body := f.PAXRecords["PALYRA.body"]
		f.PAXRecords = nil
		f.Size = int64(len(body))
		if f.Typeflag == 0 {
			f.Typeflag = tar.TypeReg
		}
		if f.Typeflag != tar.TypeReg {
			f.Size, body = 0, ""
		}
		if err := w.WriteHeader(&f); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := enc.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func entry(name, body string) tar.Header {
	return tar.Header{Name: name, PAXRecords: map[string]string{"PALYRA.body": body}}
}

// listing is a manifest of these files.
func listing(t testing.TB, files ...tar.Header) tar.Header {
	t.Helper()
	m := Manifest{Version: 1, JournalSize: -1, Files: []ManifestFile{}}
	for _, f := range files {
		body := f.PAXRecords["PALYRA.body"]
		m.Files = append(m.Files, ManifestFile{Path: f.Name, Size: int64(len(body)), Digest: canon.Sum([]byte(body))})
	}
	b, err := canon.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return entry(manifestFile, string(b))
}

// TestBackupForged: what is encrypted well can still be hostile.
func TestBackupForged(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	mark := entry(backupMark, backupForm)
	a := entry("store/a", "x")
	if _, err := h.verify(h.forge(t, mark, a, listing(t, a))); err != nil {
		t.Fatalf("the forger cannot make a good one: %v", err) // or the rest proves nothing
	}
	link := tar.Header{Name: "store/l", Typeflag: tar.TypeSymlink, Linkname: "/etc"}
	for _, c := range []struct {
		name  string
		files []tar.Header
	}{
		{"empty", nil},
		{"no mark", []tar.Header{a, listing(t, a)}},
		{"another version", []tar.Header{entry(backupMark, "2\n"), a, listing(t, a)}},
		{"no manifest", []tar.Header{mark, a}},
		{"a file more", []tar.Header{mark, a, entry("store/b", ""), listing(t, a)}},
		{"a file less", []tar.Header{mark, a, listing(t, a, entry("store/b", ""))}},
		{"other content", []tar.Header{mark, entry("store/a", "y"), listing(t, a)}},
		{"twice", []tar.Header{mark, a, a, listing(t, a, a)}},
		{"after the manifest", []tar.Header{mark, a, listing(t, a), entry("store/b", "")}},
		{"manifest twice", []tar.Header{mark, a, listing(t, a), listing(t, a)}},
		{"a link", []tar.Header{mark, a, link, listing(t, a)}},
		{"a directory", []tar.Header{mark, a, {Name: "store/d", Typeflag: tar.TypeDir}, listing(t, a)}},
		{"manifest not canonical", []tar.Header{mark, entry(manifestFile, `{"version": 1}`)}},
		{"manifest of another kind", []tar.Header{mark, entry(manifestFile, `{"files":[],"surprise":1,"version":1}`)}},
		{"keys unannounced", []tar.Header{mark, entry("keys/k", ""), listing(t, entry("keys/k", ""))}},
	} {
		_, err := h.verify(h.forge(t, c.files...))
		if fault.ReasonOf(err) != "store_corrupt" {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	for _, name := range []string{"../x", "/etc/passwd", "store/../../x", "store", "other/x", "store/.hidden", "store/a b", "store/é", "store//a",
		"journal/./x", "store/" + strings.Repeat("a", 300)} {
		f := entry(name, "x")
		dir := filepath.Join(t.TempDir(), "r")
		if _, err := Restore(context.Background(), bytes.NewReader(h.forge(t, mark, f, listing(t, f))), h.unlock(), dir); fault.ReasonOf(err) != "store_corrupt" {
			t.Errorf("%q: %v", name, err)
		}
		if es, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(es) != 0 {
			t.Errorf("%q: something is left behind: %v, %v", name, es, err)
		}
	}
}

// TestBackupHostileDatabase: a database with a trigger of somebody else's is not
// restored, nor is an artifact that is not what its name says.
func TestBackupHostileDatabase(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	fillStore(t, h.store)
	mark := entry(backupMark, backupForm)
	db := func(s *Store) tar.Header {
		path := filepath.Join(t.TempDir(), "copy.db")
		if err := s.snapshot(s.writer.conn, path); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return entry("store/"+dbFile, string(b))
	}
	d := canon.Sum([]byte("output"))
	art := entry("store/"+artifactDir+"/"+filepath.ToSlash(artifactPath(d)), "output")
	restore := func(files ...tar.Header) error {
		all := append(append([]tar.Header{mark}, files...), listing(t, files...))
		_, err := Restore(context.Background(), bytes.NewReader(h.forge(t, all...)), h.unlock(), filepath.Join(t.TempDir(), "r"))
		return err
	}
	good := db(h.store)
	if err := restore(good, art); err != nil {
		t.Fatalf("the forger cannot make a good one: %v", err)
	}
	wants(t, restore(good), fault.Integrity, "store_corrupt")
	wrong := art
	wrong.PAXRecords = map[string]string{"PALYRA.body": "0utput"}
	wants(t, restore(good, wrong), fault.Integrity, "store_corrupt")
	raw(t, h.store, `CREATE TRIGGER evil AFTER INSERT ON members BEGIN INSERT INTO settings VALUES ('k', x'00', 1); END`)
	wants(t, restore(db(h.store), art), fault.Integrity, "store_corrupt")
	raw(t, h.store, `DROP TRIGGER evil`, `DROP TRIGGER tokens_stay`)
	wants(t, restore(db(h.store), art), fault.Integrity, "store_corrupt")
	wants(t, restore(art), fault.Integrity, "store_corrupt")
}
