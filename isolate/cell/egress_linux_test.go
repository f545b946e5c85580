package cell_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/egress/handover"
	"palyra/isolate/evidence"
	"palyra/isolate/isolatetest"
	"palyra/isolate/tier"
)

func egressSpec(sockets int, argv ...string) *isolate.Spec {
	s := benchSpec(argv[0], isolate.NetworkEgress)
	s.Argv, s.Env = argv, append(s.Env, "HOME=/tmp")
	slices.Sort(s.Env)
	s.Egress = &isolate.Egress{Sockets: sockets}
	return s
}

// runEgress runs a call with a connection to a broker, and returns what it printed too.
func runEgress(ctx context.Context, t *testing.T, c *cell.Client, s *isolate.Spec, conn *os.File) (*isolate.Result, string, error) {
	t.Helper()
	exe, err := os.Open(s.Exec.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	out := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(r)
		out <- string(b)
	}()
	f := &isolate.Files{Exec: exe, Stdout: w, Stderr: w, Egress: conn}
	if s.Egress.Roots {
		if f.Roots, err = isolatetest.NewAuthority(t, trusted).File(); err != nil {
			t.Fatal(err)
		}
		defer f.Roots.Close()
	}
	res, err := c.Run(ctx, mint(t, testKey, s), s, f)
	w.Close()
	return res, <-out, err
}

// TestEgressPrograms has real programs resolve a name and connect to it.
func TestEgressPrograms(t *testing.T) {
	c := start(t, tier.C)
	// In a program's words: where it came by the name, and in git's, that it came there.
	const url = "http://packages.example:443/"
	for _, argv := range [][]string{
		{buildTalk(t), "get", "packages.example:443"}, // Go's own resolver
		{"/usr/bin/curl", "-sS", "--max-time", "20", url},
		{"/usr/bin/python3", "-c", "import urllib.request as u; print(u.urlopen('" + url + "', timeout=20).read().decode())"},
		{"/usr/bin/node", "-e", "fetch('" + url + "').then(r => r.text()).then(console.log)"},
		{"/usr/bin/git", "ls-remote", url + "x"},
		{"/usr/bin/getent", "ahosts", "packages.example"},
	} {
		if _, err := os.Stat(argv[0]); err != nil {
			t.Logf("not tried: %v", err)
			continue
		}
		t.Run(filepath.Base(argv[0]), func(t *testing.T) {
			b := isolatetest.StartBroker(t, isolatetest.BrokerName4+":443", "["+isolatetest.BrokerName6+"]:443")
			defer b.Close()
			s := egressSpec(2, argv...)
			s.Limits.Memory, s.Limits.PIDs = 4<<30, 256 // node
			res, out, err := runEgress(t.Context(), t, c, s, b.Cell)
			if err != nil || res.Outcome != isolate.Exited {
				t.Fatalf("%+v, %v, %q", res, err, out)
			}
			got := strings.TrimSpace(out)
			if argv[0] == "/usr/bin/git" {
				if !strings.Contains(got, "not valid: is this a git repository?") {
					t.Errorf("it printed %q, want that there is no repository", got)
				}
			} else if res.Evidence.Exit.Code != 0 || !strings.HasPrefix(got, isolatetest.BrokerName4) && !strings.HasPrefix(got, "["+isolatetest.BrokerName6) && !strings.HasPrefix(got, isolatetest.BrokerName6) {
				t.Errorf("it printed %q and ended with %d, want the address of the name", got, res.Evidence.Exit.Code)
			}
		})
	}
}

// TestNoNameServer: without egress a question for a name ends at once, by itself.
func TestNoNameServer(t *testing.T) {
	c := start(t, tier.C)
	for _, network := range []string{isolate.NetworkLoopback, isolate.NetworkFresh, isolate.NetworkVoid} {
		s := benchSpec("/usr/bin/getent", network)
		s.Argv = []string{"getent", "ahosts", "packages.example"}
		e, out := runIn(t, c, s, nil)
		if e.Exit.Code != 2 || out != "" || e.Usage.WallNS > (4*time.Second).Nanoseconds() {
			t.Errorf("network %q: status %d after %v, printed %q; want 2 before a resolver's first time-out", network, e.Exit.Code, time.Duration(e.Usage.WallNS), out)
		}
	}
}

// TestEgressMost orders all that a call can have.
func TestEgressMost(t *testing.T) {
	c := start(t, tier.C)
	b := isolatetest.StartBroker(t)
	s := egressSpec(isolate.MaxEgressSockets, "/bin/true")
	for i := range isolate.MaxEgressAddresses {
		s.Egress.Addresses = append(s.Egress.Addresses, fmt.Sprintf("192.0.2.%d", 100+i))
	}
	res, out, err := runEgress(t.Context(), t, c, s, b.Cell)
	berr := b.Close()
	if err != nil || res.Outcome != isolate.Exited || berr != nil {
		t.Fatalf("%+v, %v, %q, %v", res, err, out, berr)
	}
	n := res.Evidence.Network
	want := 1 + isolate.MaxEgressSockets
	if slices.Contains(n.Addresses, "::1") {
		want += isolate.MaxEgressSockets
	}
	if b.Sockets() != want || n.Mode != evidence.NetworkEgress || !slices.Contains(n.Addresses, s.Egress.Addresses[0]) || len(n.Addresses) < isolate.MaxEgressAddresses+2 {
		t.Errorf("%d sockets, want %d; evidence %+v", b.Sockets(), want, n)
	}
}

// TestEgressApart: calls at once are in networks of their own, each with its own broker.
func TestEgressApart(t *testing.T) {
	c := start(t, tier.C)
	talk := buildTalk(t)
	first := isolatetest.StartBroker(t, "198.18.1.1:443")
	defer first.Close()
	// The first call waits in its network, where a broker answers, until the second has looked.
	in, stdin, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	exe, err := os.Open(talk)
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := egressSpec(1, talk, "listen")
	s.Stdin = "stream"
	g := mint(t, testKey, s)
	var wg sync.WaitGroup
	var res *isolate.Result
	wg.Go(func() {
		res, err = c.Run(context.Background(), g, s, &isolate.Files{Exec: exe, Stdin: in, Stdout: w, Stderr: w, Egress: first.Cell})
		w.Close()
	})
	line := make([]byte, 64)
	m, _ := r.Read(line)
	port, _, ok := strings.Cut(string(line[:m]), " ")
	second := isolatetest.StartBroker(t)
	defer second.Close()
	ares, aout, aerr := runEgress(t.Context(), t, c, egressSpec(1, talk, "get", "198.18.1.1:443"), second.Cell)
	third := isolatetest.StartBroker(t)
	defer third.Close()
	bres, bout, berr := runEgress(t.Context(), t, c, egressSpec(1, talk, "get", "127.0.0.1:"+port), third.Cell)
	stdin.Close()
	wg.Wait()
	if !ok || err != nil || res.Outcome != isolate.Exited {
		t.Fatalf("the first: %q, %+v, %v", line[:m], res, err)
	}
	if aerr != nil || berr != nil || !strings.Contains(aout, "connection refused") || !strings.Contains(bout, "connection refused") {
		t.Errorf("another call printed %q (%v) and %q (%v); want refused connections", aout, aerr, bout, berr)
	}
	if ares.Evidence.Namespaces.Cell["net"] == res.Evidence.Namespaces.Cell["net"] || bres.Evidence.Namespaces.Cell["net"] == res.Evidence.Namespaces.Cell["net"] {
		t.Error("two calls have one network namespace")
	}
}

// TestEgressSilent: a broker that says nothing holds a call until its deadline, its cancellation or
// palyra-cell's patience, whichever is first.
func TestEgressSilent(t *testing.T) {
	c := start(t, tier.C)
	silent := func() (conn *os.File, took chan struct{}, end func()) {
		conn, egress, err := handover.Pair()
		if err != nil {
			t.Fatal(err)
		}
		took = make(chan struct{})
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() {
			if s, err := handover.Receive(ctx, egress); err == nil {
				defer s.Close()
				close(took)
				<-ctx.Done()
			}
		})
		return conn, took, func() {
			cancel()
			wg.Wait()
			conn.Close()
			egress.Close()
		}
	}
	t.Run("cancelled", func(t *testing.T) {
		conn, took, end := silent()
		defer end()
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-took
			cancel()
		}()
		res, out, err := runEgress(ctx, t, c, egressSpec(1, "/bin/echo", "ran"), conn)
		if res == nil || res.Outcome != isolate.Killed || res.Evidence.Exit.LimitHit != "canceled" || out != "" {
			t.Errorf("%+v, %v, printed %q; want killed, canceled", res, err, out)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		conn, _, end := silent()
		defer end()
		s := egressSpec(1, "/bin/echo", "ran")
		s.Limits.Wall = time.Second
		res, out, err := runEgress(t.Context(), t, c, s, conn)
		if res == nil || res.Outcome != isolate.TimedOut || out != "" {
			t.Errorf("%+v, %v, printed %q; want timed out", res, err, out)
		}
	})
	t.Run("patience", func(t *testing.T) {
		conn, _, end := silent()
		defer end()
		_, out, err := runEgress(t.Context(), t, c, egressSpec(1, "/bin/echo", "ran"), conn)
		if fault.ReasonOf(err) != "egress_lost" || out != "" {
			t.Errorf("%v, printed %q; want egress_lost", err, out)
		}
	})
}

// TestEgressLeaksNothing: whatever a broker does, palyra-cell has as many descriptors afterwards as
// before, and no network namespace of a call.
func TestEgressLeaksNothing(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: palyra-cell's descriptors are its own to see")
	}
	old := processes(t)
	c := start(t, tier.C)
	mine := slices.DeleteFunc(processes(t), func(pid int) bool { return slices.Contains(old, pid) })
	if len(mine) != 1 {
		t.Fatalf("processes %v, want palyra-cell alone", mine)
	}
	pid := strconv.Itoa(mine[0])
	ordinary := func(roots bool) {
		b := isolatetest.StartBroker(t)
		defer b.Close()
		s := egressSpec(isolate.MaxEgressSockets, "/bin/true")
		s.Egress.Roots = roots
		if res, _, err := runEgress(t.Context(), t, c, s, b.Cell); err != nil || res.Outcome != isolate.Exited {
			t.Errorf("%+v, %v", res, err)
		}
	}
	broken := func(do func(egress *os.File)) func() { // with an authority of its own besides
		return func() {
			conn, egress, err := handover.Pair()
			if err != nil {
				t.Fatal(err)
			}
			defer egress.Close()
			defer conn.Close()
			do(egress)
			s := egressSpec(isolate.MaxEgressSockets, "/bin/echo", "ran")
			s.Egress.Roots = true
			if _, out, err := runEgress(t.Context(), t, c, s, conn); err == nil || out != "" {
				t.Errorf("it ran: %v, %q", err, out)
			}
		}
	}
	ordinary(false) // what is made once, and stays
	want := openIn(t, pid)
	until(t, c, "the template's mounts alone", func(cell.Stats) bool { // a call's go last, after its answer
		want = openIn(t, pid)
		return len(slices.DeleteFunc(slices.Clone(want), func(kind string) bool { return kind != "mnt:" })) == 1
	})
	for name, do := range map[string]func(){
		"ready":           func() { ordinary(false) },
		"with roots":      func() { ordinary(true) },
		"gone before":     broken(func(f *os.File) { f.Close() }),
		"refused":         broken(func(f *os.File) { handover.Refuse(f, "resource_exhausted") }),
		"never reads":     broken(func(f *os.File) { f.Write([]byte("no")) }),
		"reads, and ends": broken(func(f *os.File) { go func() { f.Read(make([]byte, 64)); f.Close() }() }),
	} {
		for range 3 {
			do()
		}
		t.Log(name)
		// The remains of a call go after its answer.
		until(t, c, "what palyra-cell had before", func(cell.Stats) bool { return slices.Equal(openIn(t, pid), want) })
	}
}

// openIn lists the kinds of what a process has open, and the network namespaces of its threads.
func openIn(t *testing.T, pid string) (all []string) {
	t.Helper()
	fds, err := filepath.Glob("/proc/" + pid + "/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fds {
		if link, err := os.Readlink(f); err == nil {
			kind, _, _ := strings.Cut(link, "[")
			if strings.HasPrefix(link, "net:") {
				kind = link
			}
			all = append(all, kind)
		}
	}
	slices.Sort(all)
	tasks, err := filepath.Glob("/proc/" + pid + "/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var nets []string
	for _, f := range tasks {
		if link, err := os.Readlink(f); err == nil {
			nets = append(nets, link)
		}
	}
	slices.Sort(nets)
	all = append(all, slices.Compact(nets)...)
	return append(all, strconv.Itoa(len(fds)))
}
