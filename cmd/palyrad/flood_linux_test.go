package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/hub"
)

// asFlood names the targets of a process that floods palyrad, as lines "network
// address from guess"; with guess it tries tokens.
const asFlood = "PALYRA_TEST_FLOOD"

// floodEach is how many connections a flood holds open of each target, if it can.
const floodEach = 2048

// beFlood opens connections, asks for /livez on each and keeps them. One that is
// closed is opened again. It says "full" when each target was tried often enough.
func beFlood(targets string) int {
	var lim syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim) == nil {
		lim.Cur = lim.Max
		syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lim)
	}
	lines := strings.Split(targets, "\n")
	full := make(chan struct{}, len(lines))
	for _, l := range lines {
		var network, addr, from, guess string
		fmt.Sscan(l, &network, &addr, &from, &guess)
		d := net.Dialer{Timeout: 5 * time.Second}
		if from != "" {
			d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
		}
		each, enough, path, token := floodEach, floodEach*5/4, "/livez", ""
		if guess != "" {
			each, enough, path, token = 8, floodEach/2, "/api/v1/status", "Authorization: Bearer palyra_"+strings.Repeat("0", 92)+"\r\n"
		}
		places := make(chan struct{}, each)
		go func() {
			for n := 0; ; n++ {
				if n == enough {
					full <- struct{}{}
				}
				if n >= floodEach {
					<-time.After(time.Millisecond) // what it lost it takes again
				}
				places <- struct{}{}
				// err is the goroutine's own.
				c, err := d.DialContext(context.Background(), network, addr)
				if err != nil {
					<-places
					continue
				}
				go func() {
					defer func() { c.Close(); <-places }()
					for in := bufio.NewReader(c); err == nil; {
						fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", path, addr, token)
						var resp *http.Response
						if resp, err = http.ReadResponse(in, nil); err == nil {
							_, err = io.Copy(io.Discard, resp.Body)
						}
						if guess == "" {
							io.Copy(io.Discard, in) // keeps the connection
						}
					}
				}()
			}
		}()
	}
	for range lines {
		select {
		case <-full:
		case <-time.After(15 * time.Second): // all its places are taken, and stay so
		}
	}
	fmt.Println("full")
	select {}
}

// flood starts a flood, as the user 65534 if it can, and waits until it is full.
func (r *running) flood(targets ...string) {
	r.t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asFlood+"="+strings.Join(targets, "\n"))
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "full\n" {
		r.t.Fatalf("the flood says %q, %v", line, err)
	}
}

// TestFlood: a user without any credential, and on the socket without a role,
// fills all that palyrad has for strangers, from three addresses of loopback.
// Meanwhile the stop on the socket answers at once, so does everything else
// there, and good tokens get in over TCP.
func TestFlood(t *testing.T) {
	more := "listen.http = \"127.0.0.1:0\"\n"
	if os.Geteuid() == 0 {
		more += "listen.socket_group = \"65534\"\n"
	}
	p := newPlace(t, more)
	for dir := p.dir; dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r := p.start()
	addr := r.http()
	var token hub.TokenSecret
	r.must(201, "POST", "/api/v1/tokens", `{"name":"x","scopes":["config.read"],"ttl_ns":3600000000000}`, &token)
	targets := []string{"tcp " + addr + " 127.0.0.2", "tcp " + addr + " 127.0.0.3", "tcp " + addr + " 127.0.0.4"}
	if os.Geteuid() == 0 {
		targets = append(targets, "unix "+p.sock)
	}
	r.flood(targets...)
	r.sleeper(60000)
	var took []time.Duration
	for range 20 {
		took = append(took, r.gets(r.client(), "POST", "http://localhost/api/v1/stop", `{"all":true,"deny_new":false}`, ""),
			r.gets(r.client(), "GET", "http://localhost/api/v1/status", "", ""),
			r.gets(web(), "GET", "http://"+addr+"/api/v1/status", "", "Bearer "+token.Secret))
	}
	atOnce(t, took)
	r.call(echo)
}

// TestGuessFlood: tokens are tried from loopback without end. Good ones that were
// never used before get in all the same, also just after a restart.
func TestGuessFlood(t *testing.T) {
	p := newPlace(t, "listen.http = \"127.0.0.1:0\"\n")
	r := p.start()
	var tokens [20]hub.TokenSecret
	for i := range tokens {
		r.must(201, "POST", "/api/v1/tokens", `{"name":"x","scopes":["config.read"],"ttl_ns":3600000000000}`, &tokens[i])
	}
	r.signal(syscall.SIGTERM)
	r.exit()
	r = p.start()
	addr := r.http()
	r.flood("tcp "+addr+" 127.0.0.1 guess", "tcp "+addr+" 127.0.0.2 guess")
	var took []time.Duration
	for _, tok := range tokens {
		took = append(took, r.gets(web(), "GET", "http://"+addr+"/api/v1/status", "", "Bearer "+tok.Secret))
	}
	atOnce(t, took)
	if n := strings.Count(r.log.String(), "token refused"); n == 0 || n > 500 {
		t.Errorf("%d lines in the log", n)
	}
}

func web() *http.Client {
	return &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
}

// atOnce allows a tenth of the answers to be late, since a machine may stall. A wait for a
// stranger's time to be over is 5 s or more, for each of them.
func atOnce(t *testing.T, took []time.Duration) {
	t.Helper()
	slices.Sort(took)
	if at := len(took) * 9 / 10; took[at] > 2*time.Second {
		t.Errorf("the answers took %v", took)
	}
}

// gets makes a request that has to be answered with 200, and says how long that took.
func (r *running) gets(c *http.Client, method, url, body, auth string) time.Duration {
	r.t.Helper()
	t := r.t
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if auth != "" {
		req.Header.Set("Authorization", auth)
	}
	start := time.Now()
	resp, err := c.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	resp.Body.Close()
	d := time.Since(start)
	if resp.StatusCode != 200 {
		t.Errorf("%s %s: %s after %v", method, url, resp.Status, d)
	}
	return d
}
