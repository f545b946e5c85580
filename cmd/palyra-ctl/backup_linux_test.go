package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"palyra/internal/canon"
	"palyra/kernel/hub"
	"palyra/kernel/store"
)

// backing is a daemon with a store to back up.
type backing struct {
	fake
	store *store.Store
}

func (b *backing) Backup(ctx context.Context, _ hub.Caller, r hub.BackupRequest, w io.Writer) (hub.BackupInfo, error) {
	sum := sha256.New()
	m, err := b.store.Backup(ctx, io.MultiWriter(w, sum), store.BackupOptions{Recipients: r.Recipients})
	if err != nil {
		return hub.BackupInfo{}, err
	}
	return hub.BackupInfo{Files: len(m.Files), Digest: canon.Digest(sum.Sum(nil)).String()}, nil
}

// TestBackupDigests: a key of our own reads the backup, and every command calls the
// file's SHA-256 by one name and prints the same, so that it can be compared with
// the journal's; the manifest's has another name.
func TestBackupDigests(t *testing.T) {
	st, err := store.Open(filepath.Join(t.TempDir(), "store"), store.Options{ArtifactQuota: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	dir := t.TempDir()
	key, file := filepath.Join(dir, "key.txt"), filepath.Join(dir, "b.age")
	run := func(want int, args ...string) string {
		t.Helper()
		var out, errs strings.Builder
		a := &app{stdout: &out, stderr: &errs, getenv: func(string) string { return "" },
			dial: func(target) (hub.Hub, error) { return &backing{store: st}, nil }}
		if got := a.run(t.Context(), args); got != want {
			t.Fatalf("%q: status %d, want %d\n%s%s", args, got, want, &out, &errs)
		}
		return out.String() + errs.String()
	}
	recipient := strings.TrimSpace(run(0, "backup", "keygen", key))
	if fi, err := os.Stat(key); err != nil || fi.Mode() != 0o600 || !strings.HasPrefix(recipient, "age1") {
		t.Errorf("%q, %v, %v", recipient, fi, err)
	}
	before, _ := os.ReadFile(key)
	run(2, "backup", "keygen", key)
	if after, _ := os.ReadFile(key); string(after) != string(before) || strings.Contains(run(2, "backup", "keygen", key), "AGE-SECRET") {
		t.Error("a key was replaced, or shown")
	}
	created := run(0, "backup", "create", "--recipient", recipient, file)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := canon.Sum(b).String()
	line := regexp.MustCompile(`(?m)^  sha256 of the file +(\S+)$`)
	for name, out := range map[string]string{"create": created, "verify": run(0, "backup", "verify", "--identity", key, file),
		"restore": run(0, "backup", "restore", "--identity", key, file, filepath.Join(dir, "restored"))} {
		if m := line.FindStringSubmatch(out); m == nil || m[1] != want || strings.Contains(out, "  digest") {
			t.Errorf("%s prints\n%swant %s", name, out, want)
		}
	}
	var v map[string]any
	if err := json.Unmarshal([]byte(run(0, "backup", "verify", "--json", "--identity", key, file)), &v); err != nil || v["file_digest"] != want || v["manifest_digest"] == want || v["digest"] != nil {
		t.Errorf("%v, %v", v, err)
	}
}
