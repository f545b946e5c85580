package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"palyra/cmd/internal/connect"
	"palyra/hub"
	"palyra/internal/canon"
)

// backing is a daemon whose backup is the list of its recipients.
var backing = hub.NewTable(hub.Backup.By(func(_ context.Context, _ hub.Caller, r hub.BackupTo) (hub.BackupInfo, error) {
	text := strings.Join(r.Recipients, " ")
	_, err := io.WriteString(r.W, text)
	return hub.BackupInfo{Files: 1, Digest: canon.Sum([]byte(text)).String()}, err
}))

// TestBackupCreate: the printed digest is the file's, under the name that backup verify
// gives it. A backup needs a recipient.
func TestBackupCreate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "b.age")
	run := func(want int, args ...string) string {
		t.Helper()
		var out, errs strings.Builder
		a := &app{stdout: &out, stderr: &errs, getenv: func(string) string { return "" },
			dial: func(connect.Target) (hub.Hub, error) { return backing, nil }}
		if got := a.run(t.Context(), args); got != want {
			t.Fatalf("%q: status %d, want %d\n%s%s", args, got, want, &out, &errs)
		}
		return out.String() + errs.String()
	}
	if out := run(2, "backup", "create", file); !strings.Contains(out, "--recipient is required") {
		t.Error(out)
	}
	created := run(0, "backup", "create", "--recipient", "age1x", "--recipient", "age1y", file)
	b, err := os.ReadFile(file)
	if err != nil || string(b) != "age1x age1y" {
		t.Fatalf("%q, %v", b, err)
	}
	want := canon.Sum(b).String()
	if m := regexp.MustCompile(`(?m)^  sha256 of the file +(\S+)$`).FindStringSubmatch(created); m == nil || m[1] != want {
		t.Errorf("prints\n%swant %s", created, want)
	}
	var v map[string]any
	if err := json.Unmarshal([]byte(run(0, "backup", "create", "--json", "--recipient", "age1x", file)), &v); err != nil || v["file_digest"] != canon.Sum([]byte("age1x")).String() {
		t.Errorf("%v, %v", v, err)
	}
}
