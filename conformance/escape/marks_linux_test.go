package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/internal/sample"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
	gatekeeper "palyra/kernel"
)

// seen is what the probe "marks" tells.
type seen struct {
	Planted map[string]string `json:"planted"`
	Found   map[string]bool   `json:"found"`
	Child   map[string]bool   `json:"child"`
	State   map[string]string `json:"state"`
	After   map[string]string `json:"after"`
	Spaces  map[string]string `json:"spaces"`
}

// cells is a kernel that runs the probe in cells of one palyra-cell.
type cells struct {
	*gatekeeper.Kernel
	t       *testing.T
	attack  string
	network string
}

func openCells(t *testing.T, network string, pool cell.Pool) *cells {
	t.Helper()
	dir := t.TempDir()
	c := &cells{t: t, attack: filepath.Join(dir, "attack"), network: network}
	helper := filepath.Join(dir, "palyra-cell")
	for to, from := range map[string]string{c.attack: "PALYRA_TEST_ATTACK", helper: "PALYRA_TEST_CELL"} {
		pkg := map[string]string{c.attack: "palyra/conformance/escape/attack", helper: "palyra/cmd/palyra-cell"}[to]
		if err := (&battery{}).build(to, os.Getenv(from), pkg); err != nil {
			t.Fatal(err)
		}
	}
	policies := filepath.Join(dir, "policy")
	if err := errors.Join(os.Mkdir(policies, 0o700), os.WriteFile(filepath.Join(policies, "all.cedar"), policyText, 0o600)); err != nil {
		t.Fatal(err)
	}
	k, err := gatekeeper.Open(t.Context(), gatekeeper.Config{StateDir: filepath.Join(dir, "state"), PolicyDir: policies, CellPath: helper, Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	c.Kernel = k
	return c
}

func (c *cells) proposal(how, nonce string) gatekeeper.Proposal {
	return gatekeeper.Proposal{Tool: gatekeeper.ToolRun, TierFloor: tier.C, Network: c.network, Argv: []string{c.attack, "marks", "how=" + how, "nonce=" + nonce}}
}

// tell finds the probe's report in its output.
func (c *cells) tell(out []byte, outcome string) *seen {
	c.t.Helper()
	for line := range bytes.Lines(out) {
		var r result
		if json.Unmarshal(line, &r) != nil || r.Outcome != outcome {
			continue
		}
		var s seen
		if err := json.Unmarshal([]byte(r.Detail), &s); err != nil {
			c.t.Fatal(err)
		}
		return &s
	}
	c.t.Fatalf("the probe told nothing: %q", out)
	return nil
}

// run runs the probe in one cell.
func (c *cells) run(how, nonce string) (*seen, *evidence.Evidence) {
	c.t.Helper()
	var out, stderr bytes.Buffer
	o, err := c.Call(c.t.Context(), c.proposal(how, nonce), gatekeeper.IO{Stdout: &out, Stderr: &stderr})
	if err != nil {
		c.t.Fatal(err)
	}
	if o.Result == nil || o.Exit != 0 {
		c.t.Fatalf("%s: %s, exit %d, %+v: %s", how, o.Outcome, o.Exit, o.Error, &stderr)
	}
	return c.tell(out.Bytes(), "OPEN"), o.Result.Evidence
}

// plant leaves marks and stays until stop is called.
func (c *cells) plant(nonce string) (s *seen, e func() *evidence.Evidence) {
	c.t.Helper()
	p := c.proposal("plant", nonce)
	p.Stdin = gatekeeper.StdinStream
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan *gatekeeper.Outcome, 1)
	go func() {
		o, err := c.Call(context.Background(), p, gatekeeper.IO{Stdin: inR, Stdout: outW, Stderr: os.Stderr})
		outW.CloseWithError(errors.Join(err, io.EOF))
		done <- o
	}()
	lines := bufio.NewReader(outR)
	for s == nil {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			c.t.Fatalf("plant: %v", err)
		}
		if bytes.Contains(line, []byte(`"PLANTED"`)) {
			s = c.tell(line, "PLANTED")
		}
	}
	go io.Copy(io.Discard, lines)
	return s, func() *evidence.Evidence {
		inW.Close()
		o := <-done
		if o == nil || o.Result == nil || !o.Result.Evidence.Exit.TreeDead {
			c.t.Fatalf("plant ended as %+v", o)
		}
		return o.Result.Evidence
	}
}

// mustPlant are marks that a cell lets a program leave: a probe that does not get
// to leave its mark proves nothing. Sockets are for networks of one's own only, and for
// kernels whose Landlock confines those in the file system.
// Some places are on none of the lists: whether they take a mark is the host's
// Landlock and file modes.
var mustPlant = []string{"file:/tmp", "file:/dev/shm", "file:/workspace", "sysv:shm", "sysv:sem", "sysv:msg",
	"environment", "memory", "descriptor", "process", "cwd", "state:umask", "state:nofile", "state:nice", "state:ignored", "state:timer", "state:given"}

var mustPlantWithSockets = []string{"abstract", "proc-net-unix"}

// mustNotPlant are those that no program may: where one could, the look of the
// next cell would have to prove more.
var mustNotPlant = []string{"key:user", "hostname", "mount", "cgroup", "hint", "mqueue", "port:tcp", "port:udp"}

// TestMarks plants marks in everything that a cell can touch and looks for them
// in other cells of the same palyra-cell: while the first one lives, and after.
func TestMarks(t *testing.T) {
	for _, c := range []struct {
		name, network     string
		pool              cell.Pool
		cellMode, netMode string
	}{
		{"cold", isolate.NetworkFresh, cell.Pool{}, evidence.CellCold, evidence.NetworkFresh},
		{"pooled", isolate.NetworkFresh, cell.Pool{Networks: 3}, evidence.CellCold, evidence.NetworkPooled},
		{"loopback", isolate.NetworkLoopback, cell.Pool{Cells: 3}, evidence.CellCold, evidence.NetworkLoopback},
		{"warm void", isolate.NetworkVoid, cell.Pool{Cells: 3}, evidence.CellWarm, evidence.NetworkVoid},
		// A sample has each kind of cell and each kind of network.
		{"void", isolate.NetworkVoid, cell.Pool{}, evidence.CellCold, evidence.NetworkVoid},
		{"warm", isolate.NetworkFresh, cell.Pool{Cells: 3}, evidence.CellWarm, ""},
	}[:sample.Of(4, 6)] {
		t.Run(c.name, func(t *testing.T) {
			h := openCells(t, c.network, c.pool)
			nonce := nonce()
			is := func(e *evidence.Evidence) bool {
				return e.Cell.Mode == c.cellMode && (c.netMode == "" || e.Network.Mode == c.netMode)
			}
			// A pool fills once it has seen a call, and while nothing runs. No event says
			// so, and a busy machine needs more time than another one.
			const tries = 100
			settle := func() { <-time.After(50 * time.Millisecond) }
			before, first := h.run("look", nonce)
			sockets := c.network != isolate.NetworkVoid && first.Landlock.ABI >= 9
			fits := 0
			look := func(when string, others *seen) {
				s, e := h.run("look", nonce)
				if is(e) {
					fits++
				}
				for name, found := range s.Found {
					// A state that was so from the start says nothing: nice 19, for one.
					if found && !(strings.HasPrefix(name, "state:") && before.Found[name]) {
						t.Errorf("%s: the mark %s of another cell is there", when, name)
					}
				}
				for key, was := range before.State {
					if s.State[key] != was {
						t.Errorf("%s: %s is %q, was %q before anything was planted", when, key, s.State[key], was)
					}
				}
				for kind, id := range s.Spaces {
					if others != nil && id == others.Spaces[kind] && !(strings.HasPrefix(kind, "net") && c.network == isolate.NetworkVoid) {
						t.Errorf("%s: namespace %s %s is that of a living cell", when, kind, id)
					}
				}
			}
			for n := 0; ; n++ {
				settle()
				planted, stop := h.plant(nonce)
				checkPlanted(t, planted, sockets, c.network == isolate.NetworkLoopback)
				for range 2 {
					look("beside it", planted)
				}
				e := stop()
				if is(e) {
					break
				}
				if n == tries {
					t.Fatalf("the marks were planted in a cell %q, network %q: want %q, %q", e.Cell.Mode, e.Network.Mode, c.cellMode, c.netMode)
				}
			}
			fits = 0
			for n := 0; n < 4 || fits < 3; n++ {
				settle()
				if look("after it", nil); n == tries {
					t.Fatalf("%d of %d looks were from a cell of the kind", fits, n)
				}
			}
			checkControl(t, h, sockets, c.network == isolate.NetworkLoopback)
			// It had no input, and so planted in what others without one get.
			settle()
			look("after the control", nil)
		})
	}
}

func checkPlanted(t *testing.T, s *seen, sockets, ports bool) {
	t.Helper()
	must := mustPlant
	if sockets {
		must = append(append([]string{}, must...), mustPlantWithSockets...)
	}
	if ports {
		must = append(append([]string{}, must...), "port:tcp", "port:udp")
	}
	for _, name := range must {
		if why, ok := s.Planted[name]; !ok || why != "" {
			t.Errorf("the mark %s could not be planted: %q", name, why)
		}
	}
	for _, name := range mustNotPlant {
		if s.Planted[name] == "" && !slices.Contains(must, name) {
			t.Errorf("the mark %s could be planted", name)
		}
	}
}

// checkControl plants and looks in one cell: what was planted must be found, by
// the process itself or by its child, or the looks before prove nothing.
func checkControl(t *testing.T, h *cells, sockets, ports bool) {
	t.Helper()
	s, _ := h.run("both", nonce())
	checkPlanted(t, s, sockets, ports)
	for name, why := range s.Planted {
		if why != "" || name == "proc-net-unix" && !sockets {
			continue
		}
		key, state := strings.CutPrefix(name, "state:")
		if !s.Found[name] && !s.Child[name] && !(state && s.State[key] != s.After[key]) {
			t.Errorf("control: the mark %s was planted and is not found", name)
		}
	}
}

// TestMarksOutside: the probe must not leave marks where no cell takes them away.
func TestMarksOutside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attack")
	if err := (&battery{}).build(path, os.Getenv("PALYRA_TEST_ATTACK"), "palyra/conformance/escape/attack"); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(path, "marks", "how=both", "nonce="+nonce()).Output()
	if err != nil || !bytes.Contains(out, []byte("this is no cell")) {
		t.Errorf("%v: %s", err, out)
	}
}
