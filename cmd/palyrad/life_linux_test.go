package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"palyra/hub"
)

// TestLife: a call, a reload, a refused reload, a second instance, and an orderly
// end.
func TestLife(t *testing.T) {
	p := newPlace(t, "")
	r := p.start("WATCHDOG_USEC=400000")
	r.call(echo)
	s := r.status()
	if s.Mode != "normal" || !s.Confinement.Enforced || s.PID != r.cmd.Process.Pid || len(s.Warnings) != 0 {
		t.Errorf("status is %+v", s)
	}
	var d hub.Doctor
	if r.must(200, "GET", "/api/v1/doctor", "", &d); len(d.Findings) == 0 {
		t.Error("doctor found nothing out")
	}
	r.await("WATCHDOG=1")
	r.await("WATCHDOG=1")

	fi, err := os.Stat(r.sock)
	if err != nil || fi.Mode().Perm() != 0o660 {
		t.Errorf("socket: %v, %v", fi.Mode(), err)
	}
	second := p.launch()
	if code := second.exit(); code != 75 || !strings.Contains(second.log.String(), " holds it") {
		t.Errorf("second instance: status %d\n%s", code, second.log)
	}
	// The first one is not disturbed, and its manager hears it still: the second
	// made a socket of its own where the first one's was.
	r.call(echo)

	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("status %d after SIGTERM\n%s", code, r.log)
	}
	gone(t, p.bin, 0)
	if _, err := os.Stat(r.sock); err == nil {
		t.Error("the socket is left")
	}
	if strings.Contains(r.log.String(), "hi") && strings.Contains(r.log.String(), `"text"`) {
		t.Errorf("arguments are in the log:\n%s", r.log)
	}
}

func TestReload(t *testing.T) {
	p := newPlace(t, "")
	r := p.start()
	p.write("daemon.log_level = \"debug\"\nlimits.queue = 3\n")
	r.signal(syscall.SIGHUP)
	r.await("RELOADING=1")
	if s := r.await("READY=1"); !strings.Contains(s, "waiting for a restart: limits.queue") {
		t.Errorf("reload: %q", s)
	}
	var settings []hub.Setting
	var page struct{ Items []hub.Setting }
	r.must(200, "GET", "/api/v1/config", "", &page)
	settings = page.Items
	for _, s := range settings {
		if s.Key == "daemon.log_level" && s.Value != "debug" || s.Key == "limits.queue" && s.Value != "64" {
			t.Errorf("%s is %v", s.Key, s.Value)
		}
	}
	p.write("daemon.log_level = \"loud\"\n")
	r.signal(syscall.SIGHUP)
	if s := r.await("READY=1"); !strings.Contains(s, "reload refused") || !strings.Contains(s, "daemon.log_level") {
		t.Errorf("bad reload: %q", s)
	}
	if s := r.status(); len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "reload refused") {
		t.Errorf("warnings are %q", s.Warnings)
	}
	r.call(echo)
}

// TestPolicyReload: policies are read again, and the old ones stay if the new
// ones do not load.
func TestPolicyReload(t *testing.T) {
	p := newPlace(t, "")
	policies := filepath.Join(p.dir, "policy")
	write := func(text string) {
		t.Helper()
		if err := os.MkdirAll(policies, 0o700); err != nil {
			t.Fatal(err)
		}
		// As an editor does it: another file takes the name.
		if err := os.WriteFile(policies+"/.new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(policies+"/.new", policies+"/all.cedar"); err != nil {
			t.Fatal(err)
		}
	}
	write("@id(\"all\") permit (principal, action, resource);\n")
	p.write(fmt.Sprintf("policy.dir = %q\n", policies))
	r := p.start()
	r.call(echo)
	write("@id(\"other\") permit (principal, action, resource == Palyra::Tool::\"palyra.sleep\");\n")
	r.signal(syscall.SIGHUP)
	if s := r.await("READY=1"); strings.Contains(s, "refused") {
		t.Errorf("reload: %q", s)
	}
	var run hub.Run
	if _, err := r.ask("POST", "/api/v1/calls", echo, &run); err != nil || len(run.Steps) != 1 || run.Steps[0].Outcome != "denied" {
		t.Errorf("under the new policy: %+v, %v", run, err)
	}
	write("permit (;\n")
	r.signal(syscall.SIGHUP)
	if s := r.await("READY=1"); !strings.Contains(s, "reload refused") {
		t.Errorf("bad policy: %q", s)
	}
	if _, err := r.ask("POST", "/api/v1/calls", echo, &run); err != nil || len(run.Steps) != 1 || run.Steps[0].Outcome != "denied" {
		t.Errorf("the old policy is gone: %+v, %v", run, err)
	}
	// Its operation tells the caller what is wrong.
	var problem struct{ Detail string }
	r.must(500, "POST", "/api/v1/reload", "", &problem)
	if !strings.Contains(problem.Detail, "all.cedar:2") {
		t.Errorf("reload: %+v", problem)
	}
	write("@id(\"all\") permit (principal, action, resource);\n")
	if err := os.WriteFile(policies+"/npm.hosts", []byte("packages.example\nnot a host\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.must(500, "POST", "/api/v1/reload", "", &problem)
	if !strings.Contains(problem.Detail, `list of hosts "npm.hosts"`) {
		t.Errorf("reload of a bad list: %+v", problem)
	}
}

// TestKill: kill -9 in the middle of a call leaves nothing running, and the next
// start says what became of the run.
func TestKill(t *testing.T) {
	p := newPlace(t, "")
	r := p.start()
	id := r.sleeper(60000)
	r.signal(syscall.SIGKILL)
	r.exit()
	gone(t, p.bin, 0)
	r = p.start()
	var run hub.Run
	r.must(200, "GET", "/api/v1/runs/"+id, "", &run)
	if run.State != hub.RunFailed || run.Reason != "interrupted" {
		t.Errorf("the run is %+v", run)
	}
	r.call(echo)
}

func (p *place) children(pid int) (out []int) {
	p.t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // a thread that ended
		}
		for w := range strings.FieldsSeq(string(b)) {
			n, err := strconv.Atoi(w)
			if err != nil {
				p.t.Fatal(err)
			}
			out = append(out, n)
		}
	}
	return out
}

// TestDrain: SIGTERM lets a call finish, until the time is up or a second signal
// comes.
func TestDrain(t *testing.T) {
	for _, tc := range []struct {
		name, config string
		sleep        int // ms
		state        string
		second       bool
	}{
		{"finishes", "", 1000, hub.RunDone, false},
		{"time is up", "daemon.drain_timeout = \"0s\"\n", 60000, hub.RunCancelled, false},
		{"second signal", "daemon.drain_timeout = \"10m\"\n", 60000, hub.RunCancelled, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPlace(t, tc.config)
			r := p.start()
			id := r.sleeper(tc.sleep)
			r.signal(syscall.SIGTERM)
			r.await("STOPPING=1")
			if tc.second {
				r.signal(syscall.SIGTERM)
			}
			if code := r.exit(); code != 0 {
				t.Errorf("status %d\n%s", code, r.log)
			}
			gone(t, p.bin, 0)
			r = p.start()
			var run hub.Run
			r.must(200, "GET", "/api/v1/runs/"+id, "", &run)
			if run.State != tc.state && !(tc.state == hub.RunCancelled && run.State == hub.RunFailed) {
				t.Errorf("the run is %s (%s), want %s", run.State, run.Reason, tc.state)
			}
		})
	}
}

// TestSafeMode: three starts that end badly, then one that only reads, then, after a
// restart by hand, an ordinary one.
func TestSafeMode(t *testing.T) {
	p := newPlace(t, "")
	for range safeAfter {
		r := p.start()            // ready, but not for ready_after
		r.signal(syscall.SIGABRT) // as the watchdog does: the Go runtime says why, and exits
		if code := r.exit(); code != 2 {
			t.Errorf("status %d, want 2 of a crash", code)
		}
	}
	r := p.launch()
	if s := r.await("READY=1"); !strings.Contains(s, "SAFE MODE") {
		t.Errorf("state is %q", s)
	}
	if s := r.status(); s.Mode != "safe" || len(s.Warnings) == 0 || !s.Confinement.Enforced {
		t.Errorf("status is %+v", s)
	}
	r.refused(503, "safe_mode", "POST", "/api/v1/calls", echo)
	r.refused(503, "safe_mode", "POST", "/api/v1/sessions", "{}")
	r.refused(503, "safe_mode", "POST", "/api/v1/tokens", `{"name":"x","scopes":["run.read"],"ttl_ns":3600000000000}`)
	r.must(200, "GET", "/api/v1/runs", "", nil)
	r.must(200, "GET", "/api/v1/journal", "", nil)
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("status %d", code)
	}
	r = p.start()
	r.call(echo)
}

// TestTokens: a token opens the HTTP listener, no token does not, and none lives
// longer than the configuration allows.
func TestTokens(t *testing.T) {
	p := newPlace(t, "listen.http = \"127.0.0.1:0\"\naccess.token_max_age = \"1h\"\n")
	r := p.start()
	r.refused(400, "invalid_input", "POST", "/api/v1/tokens", `{"name":"x","scopes":["config.read"],"ttl_ns":3600000000001}`)
	var token hub.TokenSecret
	r.must(201, "POST", "/api/v1/tokens", `{"name":"x","scopes":["config.read"],"ttl_ns":3600000000000}`, &token)
	_, after, ok := strings.Cut(r.log.String(), `"http":"`)
	addr, _, _ := strings.Cut(after, `"`)
	if !ok {
		t.Fatalf("the log does not say where it listens:\n%s", r.log)
	}
	for bearer, want := range map[string]int{"": 401, "palyra_x_y_z": 401, token.Secret: 200} {
		req, err := http.NewRequest("GET", "http://"+addr+"/api/v1/status", nil)
		if err != nil {
			t.Fatal(err)
		}
		if bearer != "" {
			req.Header.Set("Authorization", "Bearer "+bearer)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("with %d bytes of token: %d, want %d", len(bearer), resp.StatusCode, want)
		}
	}
	if strings.Contains(r.log.String(), token.Secret) {
		t.Error("the token is in the log")
	}
}

// TestGoodStart: a palyrad that was ready for long enough is not counted.
func TestGoodStart(t *testing.T) {
	p := newPlace(t, "daemon.ready_after = \"0s\"\n")
	for range safeAfter + 1 {
		r := p.start()
		r.call(echo) // by then the counter is gone
		r.signal(syscall.SIGABRT)
		r.exit()
	}
	r := p.start()
	if s := r.status(); s.Mode != "normal" {
		t.Errorf("mode is %s", s.Mode)
	}
}

// TestKilledStarts: a palyrad that was ready and is killed, as the kernel does for want of
// memory, isn't counted, and doesn't end safe mode.
func TestKilledStarts(t *testing.T) {
	p := newPlace(t, "")
	kill := func(r *running) {
		t.Helper()
		r.signal(syscall.SIGKILL)
		r.exit()
	}
	for range safeAfter + 1 {
		kill(p.start())
	}
	r := p.start()
	if s := r.status(); s.Mode != "normal" {
		t.Errorf("mode is %s after kills", s.Mode)
	}
	for range safeAfter {
		r.signal(syscall.SIGABRT)
		r.exit()
		r = p.start()
	}
	kill(r)
	r = p.start()
	if s := r.status(); s.Mode != "safe" {
		t.Errorf("mode is %s after crashes and a kill", s.Mode)
	}
}

// TestDiskLow: with too little room reads go on and calls are refused.
func TestDiskLow(t *testing.T) {
	r := newPlace(t, "journal.min_free = \"1024GiB\"\n").start()
	r.refused(503, "disk_low", "POST", "/api/v1/calls", echo)
	if s := r.status(); len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "journal.min_free") {
		t.Errorf("warnings are %q", s.Warnings)
	}
	if status, err := r.ask("GET", "/readyz", "", nil); status != 503 {
		t.Errorf("readyz: %d, %v", status, err)
	}
	if status, _ := r.ask("GET", "/livez", "", nil); status != 200 {
		t.Errorf("livez: %d", status)
	}
}

// TestActivation: sockets that the manager passed are served and left to it.
func TestActivation(t *testing.T) {
	p := newPlace(t, "listen.http = \"127.0.0.1:7142\"\nlisten.http_auth = \"off\"\n")
	unix, err := net.Listen("unix", p.sock)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	uf, err := unix.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer uf.Close()
	tf, err := tcp.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer tf.Close()
	r := &running{place: p, log: &buffer{}, done: make(chan struct{})}
	// systemd sets LISTEN_PID between fork and exec; here a shell does.
	r.cmd = exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ exec "$0" --config "$1"`, filepath.Join(p.bin, "palyrad"), p.config)
	r.cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + p.dir, "LISTEN_FDS=2", "LISTEN_FDNAMES=api:http"}
	r.cmd.ExtraFiles = []*os.File{uf, tf}
	r.cmd.Stderr = r.log
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { r.cmd.Wait(); close(r.done) }()
	t.Cleanup(func() { r.cmd.Process.Kill(); <-r.done })
	r.call(echo) // connects at once and waits: the socket was there before palyrad
	base := "http://" + tcp.Addr().String()
	for path, want := range map[string]int{"/livez": 200, "/readyz": 200, "/metrics": 200, "/api/v1/status": 404} {
		resp, err := http.Get(base + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s without authentication: %d, want %d", path, resp.StatusCode, want)
		}
	}
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("status %d\n%s", code, r.log)
	}
	if _, err := os.Stat(p.sock); err != nil {
		t.Errorf("the manager's socket is gone: %v", err)
	}
}

// TestPassedNetlink: the console asks by the manager's sockets if there are any, and by no other.
func TestPassedNetlink(t *testing.T) {
	for _, tc := range []struct {
		name      string
		protocols []int
		status    int
		log       string
	}{
		{"both", []int{syscall.NETLINK_INET_DIAG, syscall.NETLINK_ROUTE}, 401, ""},
		{"one", []int{syscall.NETLINK_INET_DIAG}, 404, "the service manager passed no NETLINK_ROUTE"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPlace(t, "listen.http = \"127.0.0.1:7142\"\n")
			tcp, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer tcp.Close()
			tf, err := tcp.(*net.TCPListener).File()
			if err != nil {
				t.Fatal(err)
			}
			defer tf.Close()
			r, files, names := &running{place: p, log: &buffer{}, done: make(chan struct{})}, []*os.File{tf}, "http"
			for _, protocol := range tc.protocols {
				fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, protocol)
				if err != nil {
					t.Fatal(err)
				}
				f := os.NewFile(uintptr(fd), "netlink")
				defer f.Close()
				files, names = append(files, f), names+":diag"
			}
			r.cmd = exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ exec "$0" --config "$1"`, filepath.Join(p.bin, "palyrad"), p.config)
			r.cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + p.dir, fmt.Sprintf("LISTEN_FDS=%d", len(files)), "LISTEN_FDNAMES=" + names}
			r.cmd.ExtraFiles, r.cmd.Stderr = files, r.log
			if err := r.cmd.Start(); err != nil {
				t.Fatal(err)
			}
			go func() { r.cmd.Wait(); close(r.done) }()
			t.Cleanup(func() { r.cmd.Process.Kill(); <-r.done })
			resp, err := http.Get("http://" + tcp.Addr().String() + "/console/questions")
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != tc.status || !strings.Contains(r.log.String(), tc.log) || tc.log == "" && strings.Contains(r.log.String(), "no console") {
				t.Errorf("status %d, want %d and %q\n%s", resp.StatusCode, tc.status, tc.log, r.log)
			}
		})
	}
}

// TestRefusesToStart: each way not to start has its status and says what to do.
func TestRefusesToStart(t *testing.T) {
	for _, tc := range []struct {
		name, config string
		code         int
		text         string
	}{
		{"beyond loopback", "listen.http = \"0.0.0.0:7142\"\n", 78, "lacks TLS (listen.tls_cert, listen.tls_key)"},
		{"floor", "profile = \"single-vm\"\napprovals.allow_self = true\n", 78, "approvals.allow_self: profile single-vm wants false"},
		{"unknown key", "limits.queu = 1\n", 78, "did you mean queue"},
		{"no policy", "policy.dir = \"/nonexistent/policy\"\n", 1, "/nonexistent/policy"},
		{"no group", "listen.socket_group = \"no-such-group\"\n", 78, "groupadd --system no-such-group"},
		{"no certificate", "listen.http = \"127.0.0.1:0\"\nlisten.tls_cert = \"/nonexistent/c\"\nlisten.tls_key = \"/nonexistent/k\"\n", 78, "load certificate"},
		{"no starter", "cell.starter = \"/nonexistent/s\"\n", 7, "systemctl status palyra-cell.service"},
		{"no cell", "cell.path = \"/nonexistent/palyra-cell\"\n", 7, "palyra-cell"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newPlace(t, tc.config).launch()
			if code := r.exit(); code != tc.code || !strings.Contains(r.log.String(), tc.text) {
				t.Errorf("status %d, want %d and %q:\n%s", code, tc.code, tc.text, r.log)
			}
		})
	}
}

// TestSocketInUse: a socket with a listener, and a file that is no socket, aren't removed.
func TestSocketInUse(t *testing.T) {
	p := newPlace(t, "")
	l, err := net.Listen("unix", p.sock)
	if err != nil {
		t.Fatal(err)
	}
	r := p.launch()
	if code := r.exit(); code != 75 || !strings.Contains(r.log.String(), "listen.socket") {
		t.Errorf("status %d\n%s", code, r.log)
	}
	l.Close()
	if err := os.WriteFile(p.sock, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	r = p.launch()
	if code := r.exit(); code != 78 || !strings.Contains(r.log.String(), "is no socket") {
		t.Errorf("status %d\n%s", code, r.log)
	}
	if b, err := os.ReadFile(p.sock); err != nil || string(b) != "mine" {
		t.Errorf("the file is %q, %v", b, err)
	}
}

// TestSplit: palyra-cell's starter as a service of its own, as deploy/systemd has
// it. palyrad ends with it, and leaves it alone when it ends first.
func TestSplit(t *testing.T) {
	p := newPlace(t, "")
	at := filepath.Join(p.dir, "starter.sock")
	p.write(fmt.Sprintf("cell.starter = %q\n", at))
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: at, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	service := exec.Command(filepath.Join(p.bin, "palyra-cell"), "starter")
	service.ExtraFiles = []*os.File{f}
	if err := service.Start(); err != nil {
		t.Fatal(err)
	}
	defer service.Wait()
	defer service.Process.Kill()

	r := p.start()
	r.call(echo)
	if c := p.children(r.cmd.Process.Pid); len(c) != 0 {
		t.Errorf("palyrad has children %v", c)
	}
	r.signal(syscall.SIGKILL)
	r.exit()
	gone(t, p.bin, 1) // the service
	r = p.start()
	r.call(echo)
	if err := service.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if code := r.exit(); code != 75 {
		t.Errorf("status %d without the service\n%s", code, r.log)
	}
	gone(t, p.bin, 0)
}
