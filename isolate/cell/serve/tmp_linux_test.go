package serve

import (
	"os"
	"path/filepath"
	"testing"

	"palyra/isolate"
	"palyra/isolate/evidence"
)

// TestTmpAsOrdered: a session's /tmp is the folder that palyra gave and no other, mounted like a
// cache; a call without one has a tmpfs of its own there.
func TestTmpAsOrdered(t *testing.T) {
	of := func(folder string, caches ...string) *process {
		dir, err := os.Open(folder)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dir.Close() })
		r := &run{s: &server{}, spec: &isolate.Spec{Caches: caches, Workspace: &isolate.Mount{}, Limits: isolate.Limits{Disk: 1 << 20, Inodes: 64}}, files: &files{}}
		for range caches {
			r.files.caches = append(r.files.caches, int(dir.Fd()))
		}
		return &process{run: r, pid: os.Getpid()}
	}
	p := of("/tmp", "go", isolate.CacheTmp)
	if err := p.checkTmp(); err != nil || p.ev.Mounts.Tmp != evidence.TmpSession {
		t.Errorf("the folder itself: %q, %v", p.ev.Mounts.Tmp, err)
	}
	other := filepath.Join(t.TempDir(), "tmp")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	if p := of(other, isolate.CacheTmp); p.checkTmp() == nil || p.ev.Mounts.Tmp != "" {
		t.Error("another folder passes")
	}
	if p := of(other, "go"); p.checkTmp() != nil || p.ev.Mounts.Tmp != "" {
		t.Error("a call without one is refused, or has one in its evidence")
	}
	for line, want := range map[string]bool{
		"/tmp rw,nosuid,nodev,relatime ext4 private": true, "/tmp rw,nosuid,relatime ext4 private": false, "/tmp ro,nosuid,nodev ext4 private": false,
		"/tmp rw,nodev ext4 private": false, "/tmp rw,nosuid,nodev ext4 shared": false, "/caches/tmp rw,nosuid,nodev ext4 private": false,
	} {
		m, err := parseMount(line)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.checkMount(m, nil); (err == nil) != want {
			t.Errorf("%q: %v", line, err)
		}
		if err := of(other, "go").checkMount(m, nil); err == nil {
			t.Errorf("%q passes for a call with a /tmp of its own", line)
		}
	}
}
