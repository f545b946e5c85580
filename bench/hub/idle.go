package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"palyra/hub"
)

// idle opens many readers of one run's tape while the run waits for an approval, and measures
// their cost to the server while nothing happens. Then it answers, and measures the time until
// every reader knows.
func (s *server) idle(n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	run, approval, err := s.waiting(ctx)
	if err != nil {
		return err
	}
	// A few readers come first: one-time costs aren't theirs.
	warm, err := s.open(run, 50)
	if err != nil {
		return err
	}
	before, goBefore, err := s.settled()
	if err != nil {
		return err
	}
	began := time.Now()
	conns, err := s.open(run, n)
	if err != nil {
		return err
	}
	opened := time.Since(began)
	after, goAfter, err := s.settled()
	if err != nil {
		return err
	}
	fmt.Println("| idle readers of a tape | opened in | server RSS before | after | each | goroutines before | after |\n|--:|--:|--:|--:|--:|--:|--:|")
	fmt.Printf("| %d | %v | %.0f MiB | %.0f MiB | %.1f KiB | %d | %d |\n\n", n, opened.Round(10*time.Millisecond),
		float64(before)/1024, float64(after)/1024, float64(after-before)/float64(n), goBefore, goAfter)

	all := append(warm, conns...)
	var wg sync.WaitGroup
	ends := make([]time.Duration, len(all))
	errs := make([]error, len(all))
	start := time.Now()
	for i, c := range all {
		wg.Go(func() {
			defer c.Close()
			ends[i], errs[i] = untilEnd(c, start)
		})
	}
	if _, err := hub.ResolveApproval.Do(ctx, s.client, hub.Caller{}, hub.Resolution{ID: approval.ID, Version: approval.Version, Answer: hub.Answer{Approve: false}}); err != nil {
		return err
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	var last time.Duration
	for _, d := range ends {
		last = max(last, d)
	}
	fmt.Printf("From the answer until the last of %d readers has the end of the tape: %v.\n", len(all), last.Round(time.Millisecond))
	return nil
}

func (s *server) waiting(ctx context.Context) (run string, a hub.Approval, err error) {
	me := hub.Caller{}
	session, err := hub.CreateSession.Do(ctx, s.client, me, hub.NewSession{})
	if err != nil {
		return "", a, err
	}
	r, err := hub.StartRun.Do(ctx, s.client, me, hub.NewRun{Session: session.ID, Steps: []hub.Step{{Tool: "fs.write_file",
		Input: raw(map[string]string{"workspace": "src", "path": "x", "mode": "create", "content": "x"})}}})

	if err != nil {
		return "", a, err
	}
	tape, err := hub.ReadTape.Do(ctx, s.client, me, hub.TapeQuery{Run: r.ID})
	if err != nil {
		return "", a, err
	}
	defer tape.Close()
	for {
		ev, err := tape.Next(ctx)
		if err != nil {
			return "", a, fmt.Errorf("the run does not ask: %w", err)
		}
		if ev.Kind == hub.EventApprovalRequested {
			return r.ID, a, json.Unmarshal(ev.Data, &a)
		}
	}
}

func (s *server) open(run string, n int) (conns []net.Conn, err error) {
	const together = 16
	conns = make([]net.Conn, n)
	errs := make([]error, together)
	var wg sync.WaitGroup
	for w := range together {
		wg.Go(func() {
			for i := w; i < n; i += together {
				if conns[i], errs[w] = s.reader(run); errs[w] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return conns, errors.Join(errs...)
}

func (s *server) reader(run string) (net.Conn, error) {
	c, err := net.Dial("unix", s.socket)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(c, "GET /api/v1/runs/%s/tape HTTP/1.1\r\nHost: bench\r\nAccept: text/event-stream\r\n\r\n", run); err != nil {
		return nil, err
	}
	// Enough to see the status. The rest waits in the socket, as with a busy client.
	b := make([]byte, len("HTTP/1.1 200"))
	if _, err := io.ReadFull(c, b); err != nil {
		return nil, err
	}
	if string(b) != "HTTP/1.1 200" {
		return nil, fmt.Errorf("tape answers %q", b)
	}
	return c, nil
}

func untilEnd(c net.Conn, start time.Time) (time.Duration, error) {
	var tail []byte
	buf := make([]byte, 4096)
	for !bytes.HasSuffix(tail, []byte("\r\n0\r\n\r\n")) {
		n, err := c.Read(buf)
		if err != nil {
			return 0, fmt.Errorf("tape broke off after %.80q: %w", tail, err)
		}
		tail = append(tail, buf[:n]...)
		tail = tail[max(0, len(tail)-80):]
	}
	return time.Since(start), nil
}

// settled waits until the server's memory has stopped changing, and returns RSS in KiB and
// goroutines.
func (s *server) settled() (rss, goroutines int, err error) {
	for last := -1; ; {
		if rss, err = s.rss(); err != nil {
			return 0, 0, err
		}
		if d := rss - last; last >= 0 && d < 256 && d > -256 {
			break
		}
		last = rss
		time.Sleep(2 * time.Second)
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", s.socket)
	}}}
	resp, err := c.Get("http://bench/metrics")
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if v, ok := strings.CutPrefix(lines.Text(), "go_goroutines "); ok {
			goroutines, err = strconv.Atoi(v)
			return rss, goroutines, err
		}
	}
	return 0, 0, cmp.Or(lines.Err(), errors.New("no go_goroutines among the metrics"))
}
