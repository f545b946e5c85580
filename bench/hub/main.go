// Command hub measures the daemon's side of Palyra under many clients: whole calls and plain
// reads over the unix socket, and the cost of a tape's reader while nothing happens.
//
//	go run ./bench/hub                 # about two minutes; prints tables for README.md
//	go run ./bench/hub -time 5s -clients 1,8 -readers 1000
//
// The server is this program again, in a process of its own: kernel, store, hub and HTTP as
// palyrad puts them together, with palyra-cell, in a temporary state directory. The load comes
// from the first process. On a host with few processors the two share them.
//
// It doesn't show how long a call takes inside (see bench), tools other than palyra.echo, or
// slow and distant clients.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"palyra/hub"
	"palyra/transport/client"
)

func main() {
	serve := flag.String("serve", "", "be the server, in this `folder` (the program starts itself so)")
	each := flag.Duration("time", 10*time.Second, "how long each load lasts")
	clients := flag.String("clients", "1,8,64,512", "numbers of clients")
	readers := flag.Int("readers", 10000, "idle readers of a tape")
	flag.Parse()
	var err error
	if *serve != "" {
		err = beServer(*serve)
	} else {
		err = measure(*each, *clients, *readers)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "hub:", err)
		os.Exit(1)
	}
}

type server struct {
	cmd    *exec.Cmd
	stdin  io.Closer // its end is the signal to stop
	socket string
	client *client.Client
}

func start(dir string) (_ *server, err error) {
	build := exec.Command("go", "build", "-o", dir+"/", "palyra/cmd/palyra-cell", "palyra/cmd/palyra-tool")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return nil, fmt.Errorf("build: %v", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &server{cmd: exec.Command(self, "-serve", dir), socket: filepath.Join(dir, "socket")}
	s.cmd.Stderr = os.Stderr
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		return nil, errors.Join(fmt.Errorf("server says %q", line), err, s.stop())
	}
	s.client, err = client.New(client.Config{Socket: s.socket})
	return s, err
}

func (s *server) stop() error {
	return errors.Join(s.stdin.Close(), s.cmd.Wait())
}

func measure(each time.Duration, clients string, readers int) error {
	dir, err := os.MkdirTemp("", "palyra-bench-hub-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := start(dir)
	if err != nil {
		return err
	}
	err = s.tables(each, clients, readers)
	return errors.Join(err, s.stop())
}

func (s *server) tables(each time.Duration, clients string, readers int) error {
	fmt.Printf("%s, %d processors, Go %s, %v each.\n\n", runtime.GOOS+"/"+runtime.GOARCH, runtime.NumCPU(), strings.TrimPrefix(runtime.Version(), "go"), each)
	fmt.Println("| load | clients | requests/s | p50 | p99 | slowest | refused | server RSS |\n|---|--:|--:|--:|--:|--:|--:|--:|")
	session, err := hub.CreateSession.Do(context.Background(), s.client, hub.Caller{}, hub.NewSession{Title: "bench"})
	if err != nil {
		return err
	}
	loads := []struct {
		name string
		do   func(context.Context, *client.Client) error
	}{
		{"read a session", func(ctx context.Context, c *client.Client) error {
			_, err := hub.GetSession.Do(ctx, c, hub.Caller{}, session.ID)
			return err
		}},
		{"call palyra.echo", func(ctx context.Context, c *client.Client) error {
			run, err := hub.Call.Do(ctx, c, hub.Caller{}, hub.NewCall{Tool: "palyra.echo", Input: json.RawMessage(`{"text":"hi"}`)})
			if err == nil && run.State != hub.RunDone {
				err = fmt.Errorf("run %s is %s: %s", run.ID, run.State, run.Reason)
			}
			return err
		}},
	}
	for _, l := range loads {
		for n := range strings.SplitSeq(clients, ",") {
			count, err := strconv.Atoi(n)
			if err != nil {
				return err
			}
			r, err := s.load(count, each, l.do)
			if err != nil {
				return fmt.Errorf("%s with %d clients: %w", l.name, count, err)
			}
			rss, err := s.rss()
			if err != nil {
				return err
			}
			fmt.Printf("| %s | %d | %.0f | %v | %v | %v | %d | %.0f MiB |\n", l.name, count, r.rate, r.p50, r.p99, r.worst, r.refused, float64(rss)/1024)
		}
	}
	fmt.Println()
	return s.idle(readers)
}

type result struct {
	rate            float64
	p50, p99, worst time.Duration
	refused         int
}

// load keeps n clients busy, each with a connection of its own. A client that is refused for
// want of a place tries again; any other error ends the measurement.
func (s *server) load(n int, d time.Duration, do func(context.Context, *client.Client) error) (r result, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), d+time.Minute)
	defer cancel()
	var mu sync.Mutex
	var times []time.Duration // guarded by mu
	var first error           // guarded by mu
	var wg sync.WaitGroup
	begin := time.Now()
	for range n {
		c, err := client.New(client.Config{Socket: s.socket})
		if err != nil {
			return r, err
		}
		wg.Go(func() {
			defer c.Close()
			var mine []time.Duration
			refused := 0
			for time.Since(begin) < d {
				t := time.Now()
				err := do(ctx, c)
				switch {
				case err == nil:
					mine = append(mine, time.Since(t))
					continue
				case isFull(err):
					refused++
					continue
				}
				mu.Lock()
				first = errors.Join(first, err)
				mu.Unlock()
				break
			}
			mu.Lock()
			times = append(times, mine...)
			r.refused += refused
			mu.Unlock()
		})
	}
	wg.Wait()
	if first != nil || len(times) == 0 {
		return r, errors.Join(errors.New("no measurement"), first)
	}
	r.rate = float64(len(times)) / time.Since(begin).Seconds()
	slices.Sort(times)
	at := func(q float64) time.Duration {
		return times[min(int(q*float64(len(times))), len(times)-1)].Round(10 * time.Microsecond)
	}
	r.p50, r.p99, r.worst = at(0.5), at(0.99), times[len(times)-1].Round(10*time.Microsecond)
	return r, nil
}

func (s *server) rss() (int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(b), "VmRSS:")
	if fields := strings.Fields(rest); ok && len(fields) > 0 {
		return strconv.Atoi(fields[0])
	}
	return 0, errors.New("no VmRSS in /proc")
}
