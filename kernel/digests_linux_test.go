package kernel

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"palyra/crypt/receipt"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/kernel/capsule"
	"palyra/kernel/internal/digests"
	"palyra/kernel/internal/pin"
)

// rootsOwn makes a folder that only root can write, with a program in it.
func rootsOwn(t *testing.T, size int) (dir, tool string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir, err := os.MkdirTemp("/", "kernel-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	os.Chmod(dir, 0o755)
	body := trueBinary(t)
	return dir, put(t, dir+"/tool", body+strings.Repeat("\x00", max(0, size-len(body))), 0o755)
}

// inAnHour is a time when every file is old.
func inAnHour() time.Time { return time.Now().Add(time.Hour) }

// TestDigestRemembered: a digest is remembered and used only while root alone can change the
// file.
func TestDigestRemembered(t *testing.T) {
	dir, tool := rootsOwn(t, 0)
	c := digests.New("", "")
	c.TestOnlyNow = inAnHour
	sealTool := func(p *Proposal) *sealed {
		t.Helper()
		s, err := seal(t.Context(), p, nil, "", c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.close)
		return s
	}
	first := sealTool(proposal(tool))
	if first.program.exec.digest.Cached || sealTool(proposal(tool)).program.exec.digest.Cached == false {
		t.Fatal("not read first and remembered then")
	}
	for _, k := range []struct {
		name           string
		change, mend   func() error
		pinned         string
		cached, mended bool
	}{
		{"nothing", func() error { return nil }, func() error { return nil }, capsule.PinnedSystem, true, true},
		{"owner", func() error { return os.Chown(tool, 1234, 0) }, func() error { return os.Chown(tool, 0, 0) },
			capsule.PinnedSealed, false, false},
		{"writable", func() error { return os.Chmod(tool, 0o777) }, func() error { return os.Chmod(tool, 0o755) },
			capsule.PinnedSealed, false, false},
		{"writable folder", func() error { return os.Chmod(dir, 0o777) }, func() error { return os.Chmod(dir, 0o755) },
			capsule.PinnedSealed, false, true},
		{"folder of a user", func() error { return os.Chown(dir, 1234, 0) }, func() error { return os.Chown(dir, 0, 0) },
			capsule.PinnedSealed, false, true},
	} {
		if err := k.change(); err != nil {
			t.Fatal(err)
		}
		s := sealTool(proposal(tool))
		if e := s.program.exec; e.record.Pinned != k.pinned || e.digest.Cached != k.cached || e.record.Digest != first.program.exec.record.Digest {
			t.Errorf("%s: %s, cached %v", k.name, e.record.Pinned, e.digest.Cached)
		}
		if err := k.mend(); err != nil {
			t.Fatal(err)
		}
		s = sealTool(proposal(tool))
		if e := s.program.exec; e.record.Pinned != capsule.PinnedSystem || e.digest.Cached != k.mended || s.id != first.id {
			t.Errorf("%s, mended: %s, cached %v, same capsule %v", k.name, e.record.Pinned, e.digest.Cached, s.id == first.id)
		}
	}
	// The program can write the workspace, whatever its owner.
	p := proposal("./tool")
	p.Workspace = dir
	for range 3 {
		if e := sealTool(p).program.exec; e.record.Pinned != capsule.PinnedSealed || e.digest.Cached {
			t.Errorf("in the workspace: %+v", e)
		}
	}
	put(t, tool, trueBinary(t)+"x", 0o755)
	if s := sealTool(proposal(tool)); s.program.exec.digest.Cached || s.id == first.id {
		t.Error("rewritten, and the same call")
	}
}

// TestProgramCopied: a program that users other than root can change is hashed for its first
// two calls, and then copied. It's the same call each time.
func TestProgramCopied(t *testing.T) {
	c := digests.New("", "")
	c.TestOnlyNow = inAnHour
	var dir string
	for _, in := range []string{os.TempDir(), "/var/tmp", "."} { // on a file system that keeps times
		at, err := os.MkdirTemp(in, "kernel-test-")
		if err != nil {
			continue
		}
		t.Cleanup(func() { os.RemoveAll(at) })
		if f, err := os.Open(at); err == nil && pin.KeepsTimes(f) {
			dir, _ = filepath.Abs(at)
			f.Close()
			break
		}
	}
	if dir == "" {
		t.Skip("host control missing: a file system that keeps times")
	}
	os.Chmod(dir, 0o777) // now another user may replace the file
	tool := put(t, dir+"/tool", trueBinary(t), 0o755)
	var first *sealed
	for i := range 4 {
		s, err := seal(t.Context(), proposal(tool), nil, "", c)
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		if first == nil {
			first = s
		}
		if e := s.program.exec; s.id != first.id || e.record.Pinned != capsule.PinnedSealed || e.digest.Cached != (i > 1) {
			t.Errorf("call %d: %+v, cached %v", i, e.record, e.digest.Cached)
		}
	}
}

// TestReceiptSaysHowItWasHashed follows one program through three processes.
func TestReceiptSaysHowItWasHashed(t *testing.T) {
	dir, tool := rootsOwn(t, 300<<10)
	script := put(t, dir+"/script", "#!"+tool+"\n", 0o755)
	const odd = "a<b>&\u2028\"\\" // escaped by encoding/json but not in canonical JSON
	cfg := withFake(func(*isolate.Spec, *isolate.Files) (*isolate.Result, error) {
		return &isolate.Result{Outcome: isolate.Exited, Evidence: &evidence.Evidence{Tier: "c", Degraded: []string{odd}}}, nil
	})
	cfg.PolicyDir = t.TempDir()
	os.Chmod(cfg.PolicyDir, 0o755)
	put(t, cfg.PolicyDir+"/all.cedar", "@id(\"all\") permit (principal, action, resource);\n", 0o644)
	cfg.StateDir = t.TempDir() + "/state"
	var capsuleDigest any
	ask := func(h *house, want, wantScript string) *evidence.Evidence {
		t.Helper()
		h.state.digests.TestOnlyNow = inAnHour
		o := h.call(proposal(script), IO{})
		var e evidence.Evidence
		if err := json.Unmarshal(h.verify(o).Statement.Predicate.Evidence, &e); err != nil {
			t.Fatal(err)
		}
		if capsuleDigest == nil {
			capsuleDigest = o.CapsuleDigest
		}
		if o.Outcome != receipt.Executed || o.CapsuleDigest != capsuleDigest {
			t.Errorf("%s, capsule %v", o.Outcome, o.CapsuleDigest)
		}
		if e.Executable.DigestBasis != want || len(e.Scripts) != 1 || e.Scripts[0].DigestBasis != wantScript || e.Scripts[0].Path != script {
			t.Fatalf("want %s and %s, got %+v, %+v", want, wantScript, e.Executable, e.Scripts)
		}
		if len(e.Degraded) != 1 || e.Degraded[0] != odd {
			t.Errorf("evidence: %q", e.Degraded)
		}
		for _, f := range append(e.Scripts, e.Executable) {
			if _, err := time.Parse(time.RFC3339, f.DigestTime); err != nil {
				t.Error(err)
			}
		}
		return &e
	}
	h := openHouse(t, cfg)
	first := ask(h, "hashed", "hashed")
	if second := ask(h, "cached", "cached"); second.Executable.DigestTime != first.Executable.DigestTime {
		t.Errorf("hashed at %s, then at %s", first.Executable.DigestTime, second.Executable.DigestTime)
	}
	h.audit() // closes

	// The next process finds the saved digest of the large file, and reads the small one again.
	h = openHouse(t, cfg)
	if third := ask(h, "cached", "hashed"); third.Executable.DigestTime != first.Executable.DigestTime {
		t.Errorf("hashed at %s, then at %s", first.Executable.DigestTime, third.Executable.DigestTime)
	}
	h.audit()

	// Damage is no obstacle, and is repaired.
	saved := h.dir + "/digests"
	good, err := os.ReadFile(saved)
	if err != nil {
		t.Fatal(err)
	}
	good[len(good)/2] ^= 1
	put(t, saved, string(good), 0o600)
	h = openHouse(t, cfg)
	ask(h, "hashed", "hashed")
	h.audit()
	h = openHouse(t, cfg)
	ask(h, "cached", "hashed")
}

// TestDigestsConcurrent: of many calls of one program, one reads it.
func TestDigestsConcurrent(t *testing.T) {
	_, tool := rootsOwn(t, 8<<20)
	var mu sync.Mutex
	read := 0
	h := openHouse(t, withFake(func(*isolate.Spec, *isolate.Files) (*isolate.Result, error) {
		return &isolate.Result{Outcome: isolate.Exited, Evidence: &evidence.Evidence{Tier: "c"}}, nil
	}))
	h.cfg.Approver = answer{yes: true}
	h.state.digests.TestOnlyNow = inAnHour
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 3 {
				o, err := h.Call(t.Context(), *proposal(tool), IO{})
				if err != nil || o.Outcome != receipt.Executed {
					t.Errorf("%v, %v", o, err)
					continue
				}
				if o.Result.Evidence.Executable.DigestBasis == evidence.DigestHashed {
					mu.Lock()
					read++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if read != 1 {
		t.Errorf("read %d times", read)
	}
}

// BenchmarkSeal measures the sealing of a call of a system program.
func BenchmarkSeal(b *testing.B) {
	for name, c := range map[string]*digests.Cache{"hashed": nil, "cached": digests.New("", "")} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s, err := seal(b.Context(), proposal("/bin/true"), nil, "", c)
				if err != nil {
					b.Fatal(err)
				}
				s.close()
			}
		})
	}
}
