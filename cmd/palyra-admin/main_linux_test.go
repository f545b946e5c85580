package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"palyra/cmd/internal/fronttest"
	"palyra/cmd/internal/programs"
	"palyra/hub/store"
	"palyra/internal/canon"
)

// TestTable: every command that palyra hands to palyra-admin has a function, and
// every function is in the table.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range programs.Table(programs.Admin).Commands {
		seen[c.Name] = true
		if commands[c.Name] == nil {
			t.Errorf("%s has no function", c.Name)
		}
	}
	for name := range commands {
		if !seen[name] {
			t.Errorf("%s is not in the table", name)
		}
	}
}

// runHere runs palyra-admin in this process.
func runHere(t *testing.T, want int, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	if got := run(t.Context(), args, &out, &errs); got != want {
		t.Fatalf("%q: status %d, want %d\n%s%s", args, got, want, &out, &errs)
	}
	return out.String(), errs.String()
}

// TestGroupHelp: the first word of several commands has help.
func TestGroupHelp(t *testing.T) {
	if out, errs := runHere(t, 0, "backup", "-h"); !strings.Contains(out, "\n  backup restore ") || errs != "" {
		t.Errorf("%q, %q", out, errs)
	}
}

// TestBackupDigests: a key of our own reads the backup, and each command calls the
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
	out, _ := runHere(t, 0, "backup", "keygen", key)
	recipient := strings.TrimSpace(out)
	if fi, err := os.Stat(key); err != nil || fi.Mode() != 0o600 || !strings.HasPrefix(recipient, "age1") {
		t.Errorf("%q, %v, %v", recipient, fi, err)
	}
	before, _ := os.ReadFile(key)
	_, said := runHere(t, 2, "backup", "keygen", key)
	if after, _ := os.ReadFile(key); string(after) != string(before) || strings.Contains(said, "AGE-SECRET") {
		t.Error("a key was replaced, or shown")
	}
	var b bytes.Buffer
	if _, err := st.Backup(t.Context(), &b, store.BackupOptions{Recipients: []string{recipient}}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	want := canon.Sum(b.Bytes()).String()
	line := regexp.MustCompile(`(?m)^  sha256 of the file +(\S+)$`)
	for _, args := range [][]string{{"backup", "verify", "--identity", key, file}, {"backup", "restore", "--identity", key, file, filepath.Join(dir, "restored")}} {
		out, _ := runHere(t, 0, args...)
		if m := line.FindStringSubmatch(out); m == nil || m[1] != want || strings.Contains(out, "  digest") {
			t.Errorf("%s prints\n%swant %s", args[1], out, want)
		}
	}
	out, _ = runHere(t, 0, "backup", "verify", "--json", "--identity", key, file)
	var v map[string]any
	if err := json.Unmarshal([]byte(out), &v); err != nil || v["file_digest"] != want || v["manifest_digest"] == want || v["digest"] != nil || v["schema"] != "palyra.backup.verify/v1" {
		t.Errorf("%v, %v", v, err)
	}
}

func TestCompleteKeys(t *testing.T) {
	if out, _ := runHere(t, 0, "complete", "key"); !strings.Contains(out, "\nbudget.calls\n") {
		t.Errorf("%q", out)
	}
	runHere(t, 2, "complete", "run")
}

// TestBadInput gives each command each bad input in each place.
func TestBadInput(t *testing.T) {
	dir, bad := fronttest.BadInputs(t)
	t.Chdir(dir)
	table := programs.Table(programs.Admin)
	for _, c := range table.Commands {
		lines := fronttest.Lines(&c)
		if strings.HasPrefix(c.Name, "backup ") && c.Name != "backup keygen" {
			for i := range lines { // beyond the flag that is asked for first
				if !strings.Contains(strings.Join(lines[i], " "), "--identity") {
					lines[i] = append(lines[i], "--identity", "empty")
				}
			}
		}
		for _, line := range lines {
			for _, in := range bad {
				args := fronttest.Fill(line, in)
				switch c.Name + " " + in {
				case "backup verify fifo", "backup restore fifo":
					// A pipe with a backup or a key is good input, and has a writer.
					continue
				case "config validate empty", "config validate /dev/null":
					// A file without settings is a configuration.
					continue
				case "backup keygen missing", "backup keygen -", "backup keygen x\x1b[2J", "backup keygen \xff":
					// The command makes the file.
					continue
				}
				var out, errs strings.Builder
				fronttest.Complained(t, table, args, run(t.Context(), args, &out, &errs), errs.String())
			}
		}
	}
}
