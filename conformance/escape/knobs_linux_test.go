package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"palyra/internal/sample"
	"palyra/isolate/certify"
	"palyra/isolate/knob"
	"palyra/isolate/native/landlock"
)

// certificate is what the test reads of palyra sandbox certify --json.
type certificate struct {
	Certificate struct {
		Build string `json:"test_build"`
		Kinds []struct {
			Kind    string `json:"kind"`
			Refused string `json:"refused"`
			Results []struct {
				Claim   string `json:"claim"`
				Verdict string `json:"verdict"`
				Reason  string `json:"reason"`
			} `json:"results"`
		} `json:"kinds"`
	} `json:"certificate"`
}

// buildKnobs builds palyra and palyra-cell with knobs into a directory.
func buildKnobs(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("PALYRA_TEST_KNOBS") // built before, where there is no go command
	if dir == "" {
		dir = t.TempDir()
		cmd := exec.Command("go", "build", "-tags", knob.Tag, "-ldflags=-s -w", "-o", dir, "palyra/cmd/palyra", "palyra/cmd/palyra-cell")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false -trimpath")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build with %s: %v\n%s", knob.Tag, err, out)
		}
	}
	return dir
}

// TestKnobs turns off one mechanism after the other, in binaries built for that,
// and wants the sandbox certificate to lose the claim about it, and no other. With
// none turned off it loses none.
func TestKnobs(t *testing.T) {
	built := buildKnobs(t)
	type run struct {
		certify.Claim
		out, stderr bytes.Buffer
		err         error
	}
	runs := []*run{{Claim: certify.Claim{Name: "none"}}}
	var names []string
	claims := certify.Claims()
	for i := range claims {
		names = append(names, claims[i].Name)
	}
	for _, i := range sample.Steps(names) {
		runs = append(runs, &run{Claim: claims[i]})
	}
	// They mostly wait: for a deadline, for a process to start.
	var wg sync.WaitGroup
	places := make(chan struct{}, 6)
	for _, r := range runs {
		cmd := certifier(t, built, &r.Claim)
		cmd.Stdout, cmd.Stderr = &r.out, &r.stderr
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			r.err = cmd.Run()
		})
	}
	wg.Wait()
	for _, r := range runs {
		t.Run(r.Name, func(t *testing.T) {
			var got certificate
			if err := json.Unmarshal(r.out.Bytes(), &got); err != nil || got.Certificate.Build != knob.Tag {
				t.Fatalf("certify: %v, %v, build %q\n%s%s", r.err, err, got.Certificate.Build, r.stderr.Bytes(), r.out.Bytes())
			}
			lost(t, &r.Claim, &got)
		})
	}
}

// certifier is the test of the sandbox with the knob of a claim turned off.
func certifier(t *testing.T, built string, c *certify.Claim) *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"palyra", "palyra-cell"} {
		if err := os.Link(filepath.Join(built, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "palyra-cell.knobs"), []byte(c.Knob+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{"sandbox", "certify", "--json", "--state", filepath.Join(dir, "state"), "--kind", "c.cold"}
	if c.Tiers == "bc" && c.Knob != knob.Deadline { // whose loss takes seconds to see
		args = append(args, "--kind", "b")
	}
	return exec.CommandContext(t.Context(), filepath.Join(dir, "palyra"), args...)
}

// noUnix reports whether the filter refuses unix sockets, and so to bind at all: below
// Landlock's ABI 9. It stands in front of Landlock's rights on ports then, which no
// program notices to be missing.
func noUnix(t *testing.T) bool {
	t.Helper()
	abi, err := landlock.ABI()
	if err != nil {
		t.Fatal(err)
	}
	return abi < 9
}

// lost looks what a certificate lost.
func lost(t *testing.T, c *certify.Claim, got *certificate) {
	t.Helper()
	for _, k := range got.Certificate.Kinds {
		// Tier B of a plain user has no capabilities to keep, and the kernel takes no
		// Landlock from a process with neither those nor no_new_privs.
		if k.Kind == "b" && os.Getuid() != 0 && (c.Knob == knob.Capabilities || c.Knob == knob.NoNewPrivs) {
			continue
		}
		if k.Refused != "" {
			if k.Kind != "b" && os.Getuid() != 0 {
				t.Skip("needs user namespaces")
			}
			t.Fatalf("%s is refused: %s", k.Kind, k.Refused)
		}
		for _, r := range k.Results {
			want := "proven"
			if r.Claim == c.Name && !(c.Knob == knob.LandlockNet && noUnix(t)) {
				want = "refuted"
			}
			if r.Verdict != want {
				t.Errorf("%s, %q off: %s is %s, want %s: %s", k.Kind, c.Knob, r.Claim, r.Verdict, want, r.Reason)
			}
		}
	}
}
