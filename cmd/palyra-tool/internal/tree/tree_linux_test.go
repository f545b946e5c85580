package tree

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"palyra/internal/fault"
)

// swapped lets names be exchanged as fast as it goes while do runs.
func swapped(t *testing.T, dir string, pairs [][2]string, do func()) {
	t.Helper()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			for _, p := range pairs {
				select {
				case <-stop:
					return
				default:
				}
				for _, r := range [][2]string{{p[0], "tmp"}, {p[1], p[0]}, {"tmp", p[1]}} {
					if err := os.Rename(filepath.Join(dir, r[0]), filepath.Join(dir, r[1])); err != nil {
						t.Error(err)
						return
					}
				}
			}
		}
	})
	do()
	close(stop)
	wg.Wait()
}

func put(t *testing.T, name, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(content), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// tooFew tells whether a look has not met both sides of an exchange yet.
func tooFew(reasons map[string]int) bool { return reasons["ok"] == 0 || reasons["bad_file"] == 0 }

// TestSwappedFolder: a folder that becomes a link between the look at it and its opening
// isn't followed, not even to a folder of the workspace, and one that becomes a FIFO makes
// no call wait.
func TestSwappedFolder(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/d/named", "")
	put(t, dir+"/other/unnamed", "")
	if err := errors.Join(os.Symlink("other", dir+"/link"), syscall.Mkfifo(dir+"/fifo", 0o644)); err != nil {
		t.Fatal(err)
	}
	tr, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	reasons := make(map[string]int)
	swapped(t, dir, [][2]string{{"d", "link"}, {"d", "fifo"}}, func() {
		for end := time.Now().Add(3 * time.Second); tooFew(reasons) || time.Now().Before(end) && !(reasons["changed"] > 3 && reasons["bad_file"] > 5000); {
			d, err := tr.Dir("d")
			if err != nil {
				reasons[fault.ReasonOf(err)]++
				continue
			}
			reasons["ok"]++
			if _, err := d.Stat("unnamed"); err == nil {
				t.Error("followed a link")
			}
			d.Close()
			if t.Failed() {
				return
			}
		}
	})
	if reasons["io"] > 0 {
		t.Errorf("%v", reasons)
	}
	t.Log(reasons)
}

// TestSwappedFile: the same of a file that becomes a link, and of one that becomes a FIFO,
// on which no call waits.
func TestSwappedFile(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/f", "named")
	put(t, dir+"/other", "unnamed")
	if err := errors.Join(os.Symlink("other", dir+"/link"), syscall.Mkfifo(dir+"/fifo", 0o644)); err != nil {
		t.Fatal(err)
	}
	tr, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	d, err := tr.Dir(".")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	reasons := make(map[string]int)
	swapped(t, dir, [][2]string{{"f", "link"}, {"f", "fifo"}}, func() {
		for end := time.Now().Add(3 * time.Second); tooFew(reasons) || time.Now().Before(end) && !(reasons["changed"] > 3 && reasons["bad_file"] > 100); {
			f, _, err := d.Open("f")
			if err == nil {
				b, _ := io.ReadAll(f)
				f.Close()
				if reasons["ok"]++; string(b) != "named" {
					t.Errorf("read %q", b)
					return
				}
			} else {
				reasons[fault.ReasonOf(err)]++
			}
			if f, _, err := tr.Open("f"); err == nil { // may follow the link, must not wait
				f.Close()
			}
		}
	})
	if reasons["io"] > 0 {
		t.Errorf("%v", reasons)
	}
	t.Log(reasons)
}

// TestFailure holds the text that the standard library gives no value for.
func TestFailure(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/etc/passwd", dir+"/out"); err != nil {
		t.Fatal(err)
	}
	tr, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	for name, want := range map[string]string{"out": "outside_workspace", "..": "outside_workspace", "/etc": "outside_workspace", "x": "not_found"} {
		if _, _, err := tr.Open(name); fault.ReasonOf(err) != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}

// TestKeepWithoutLinks: where a second name cannot be had, the content is kept.
func TestKeepWithoutLinks(t *testing.T) {
	dir := t.TempDir()
	tr, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	d, err := tr.Dir(".")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	// A name that is not there stands for every reason that link(2) has.
	s, err := d.Keep("gone", []byte("content"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, s.Name()))
	if err != nil || string(b) != "content" || !IsLeftover(s.Name()) {
		t.Errorf("%q, %v", b, err)
	}
	if err := errors.Join(s.Drop(), s.Drop()); err != nil {
		t.Error(err)
	}
}

// TestSweep: what killed calls have staged goes with the next write to the
// folder, and nothing that only looks like it, is young or was kept.
func TestSweep(t *testing.T) {
	base := t.TempDir()
	tr, err := Open(base)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	d, err := tr.Dir(".")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	const text = "ABCDEFGHIJKLMNOPQRSTUVWXY2"
	plain := []string{".palyra-" + text + ".tmp", ".palyra-was-" + text + ".tmp", ".palyra-" + text[1:] + ".tmp", ".palyra-" + strings.ToLower(text) + ".tmp",
		".palyra-" + text + ".tmp~", "palyra-" + text + ".tmp"}
	for _, name := range plain {
		if err := os.WriteFile(filepath.Join(base, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	folder, link := ".palyra-"+text[:25]+"3.tmp", ".palyra-"+text[:25]+"4.tmp"
	if err := os.Mkdir(filepath.Join(base, folder), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(plain[0], filepath.Join(base, link)); err != nil {
		t.Fatal(err)
	}
	there := func(name string) bool {
		_, err := os.Lstat(filepath.Join(base, name))
		return err == nil
	}
	d.sweep(time.Now()) // the time of a change cannot be set: the clock is moved instead
	if !there(plain[0]) {
		t.Error("a young one is gone")
	}
	d.sweep(time.Now().Add(2 * abandoned))
	if there(plain[0]) {
		t.Error("an old one is left")
	}
	for _, name := range append(plain[1:], folder, link) {
		if !there(name) {
			t.Errorf("%s is gone", name)
		}
	}
	s, err := d.Stage([]byte("new"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if !staged(s.Name()) {
		t.Errorf("what is staged is called %s", s.Name())
	}
	k, err := d.Keep("palyra-"+text+".tmp", []byte("x"), 0o600)
	if err != nil || staged(k.Name()) {
		t.Errorf("what is kept is called %v, %v", k, err)
	}
}
