package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"palyra/hub"
	"palyra/hub/local"
	"palyra/transport/console"
)

// lobby is a rig with a console over a hub of its own.
func lobby(t *testing.T) (*rig, *local.Hub) {
	t.Helper()
	var r *rig
	h := office(t, func(c *local.Config) { c.Console = func() string { return "http://" + r.tcp } })
	pages, err := console.New(console.Config{Door: h, Notifier: h})
	if err != nil {
		t.Fatal(err)
	}
	owners, err := OpenOwners()
	if err != nil {
		t.Fatal(err)
	}
	r = newRig(t, func(c *Config) { c.Hub, c.Check, c.Console, c.Owners = h, h.MayFollow, pages, owners })
	r.web.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return r, h
}

// visit makes a browser's request and returns status and body.
func (r *rig) visit(method, path, form string, headers ...string) (int, string, http.Header) {
	r.t.Helper()
	req, err := http.NewRequest(method, "http://"+r.tcp+path, strings.NewReader(form))
	if err != nil {
		r.t.Fatal(err)
	}
	if form != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	resp, err := r.web.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(b), resp.Header
}

// cookies returns the Cookie header for those that an answer set.
func cookies(h http.Header) string {
	var all []string
	for _, c := range (&http.Response{Header: h}).Cookies() {
		if c.MaxAge >= 0 {
			all = append(all, c.Name+"="+c.Value)
		}
	}
	return "Cookie: " + strings.Join(all, "; ")
}

func (r *rig) letIn(h *local.Hub) string {
	r.t.Helper()
	code, err := hub.OpenConsole.Do(r.t.Context(), h, callerOf(r.t, h, uint32(os.Geteuid())), hub.None{})
	if err != nil {
		r.t.Fatal(err)
	}
	status, _, head := r.visit(get, "/enter?code="+code.Code, "")
	if status != 200 {
		r.t.Fatalf("the door: %d", status)
	}
	status, _, head = r.visit(post, "/enter", "code="+code.Code, cookies(head))
	if status != 303 {
		r.t.Fatalf("enter: %d", status)
	}
	for _, c := range (&http.Response{Header: head}).Cookies() {
		if !c.Secure || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.Domain != "" || !strings.HasPrefix(c.Name, "__Host-") {
			r.t.Errorf("cookie %s", c)
		}
	}
	return cookies(head)
}

// TestConsolePages: a page wants the cookie and nothing else, and each answer has the console's policies.
func TestConsolePages(t *testing.T) {
	r, h := lobby(t)
	cookie := r.letIn(h)
	_, token, _ := strings.Cut(cookie, "=")
	_, port, _ := net.SplitHostPort(r.tcp)
	if !strings.HasPrefix(cookie, "Cookie: __Host-palyra-"+port+"=") {
		t.Errorf("cookie %.40s", cookie)
	}
	for _, c := range []struct {
		name    string
		method  string
		path    string
		form    string
		headers []string
		want    int
	}{
		{"root", get, "/", "", nil, 303},
		{"questions", get, "/console/questions", "", []string{cookie}, 200},
		{"head", http.MethodHead, "/console/runs", "", []string{cookie}, 200},
		{"journal", get, "/console/journal", "", []string{cookie}, 200},
		{"entry", get, "/console/journal/0", "", []string{cookie}, 200},
		{"no entry", get, "/console/journal/999999", "", []string{cookie}, 404},
		{"access", get, "/console/access", "", []string{cookie}, 200},
		{"changes", get, "/console/changes", "", []string{cookie}, 200},
		{"no page", get, "/console/nothing", "", []string{cookie}, 404},
		{"no run", get, "/console/runs/run_x", "", []string{cookie}, 400},
		{"no cookie", get, "/console/questions", "", nil, 401},
		{"a bearer", get, "/console/questions", "", []string{"Authorization: Bearer " + token}, 401},
		{"another port's cookie", get, "/console/questions", "", []string{strings.Replace(cookie, port, "1", 1)}, 401},
		{"a wrong one", get, "/console/questions", "", []string{cookie[:len(cookie)-3] + "aaa"}, 401},
		{"two", get, "/console/questions", "", []string{cookie + strings.Replace(cookie, "Cookie:", ";", 1)}, 401},
		{"another site's form", post, "/console/stop", "x=1", []string{cookie, "Sec-Fetch-Site: cross-site"}, 403},
		{"another port's form", post, "/console/stop", "x=1", []string{cookie, "Sec-Fetch-Site: same-site"}, 403},
		{"another origin's form", post, "/console/stop", "x=1", []string{cookie, "Origin: http://evil.example"}, 403},
		{"JSON", post, "/console/stop", "{}", []string{cookie, "Content-Type: application/json"}, 415},
		{"too long", post, "/console/stop", "x=" + strings.Repeat("a", maxForm), []string{cookie}, 413},
		{"a policy that is longer than other forms", post, "/console/policy/try", "file=a.cedar&text=" + strings.Repeat("%2F", 2*maxForm), []string{cookie}, 200},
		{"a prompt that is longer than other forms, and names no model", post, "/console/agent", "prompt=" + strings.Repeat("%2F", 2*maxForm), []string{cookie}, 400},
		{"too long a policy", post, "/console/policy/try", "file=a.cedar&text=" + strings.Repeat("a", maxLarge), []string{cookie}, 413},
		{"a policy in a folder", post, "/console/policy/try", "file=../a.cedar&text=x", []string{cookie}, 400},
		{"policy", get, "/console/policy", "", []string{cookie}, 200},
		{"no policy set", get, "/console/policy/sets/sha256:" + strings.Repeat("1", 64), "", []string{cookie}, 404},
		{"not a form", post, "/console/stop", "%zz", []string{cookie}, 400},
		{"a question without its version", post, "/console/questions/apr_00112233445566778899aabbccddeeff", "answer=yes", []string{cookie}, 400},
		{"a question that isn't there", post, "/console/questions/apr_00112233445566778899aabbccddeeff", "answer=yes&version=1&capsule=x&scope=once", []string{cookie}, 404},
		{"the API", get, "/api/v1/status", "", []string{cookie}, 401},
		{"the API with what is in it", get, "/api/v1/status", "", []string{"Authorization: Bearer " + token}, 401},
		{"no asset", get, "/assets/style.css", "", nil, 404},
		{"a made-up code", get, "/enter?code=AAAA", "", nil, 401},
		{"the door without a code", get, "/enter", "", nil, 200},
		{"a signature that isn't base64url", post, "/enter", "signature=*", nil, 400},
		{"a signature where passkeys can't be", post, "/enter", "signature=AAAA", nil, 501},
		{"another site's signature", post, "/enter", "signature=AAAA", []string{"Sec-Fetch-Site: cross-site"}, 403},
		{"the page of a new passkey", get, "/console/access/passkey", "", []string{cookie}, 200},
		{"a new passkey that isn't base64url", post, "/console/access/passkey", "id=*", []string{cookie}, 400},
		{"another site's new passkey", post, "/console/access/passkey", "id=AAAA", []string{cookie, "Sec-Fetch-Site: cross-site"}, 403},
		{"no passkey to revoke", post, "/console/access/passkeys/psk_00112233445566778899aabbccddeeff/revoke", "x=1", []string{cookie}, 404},
	} {
		status, body, head := r.visit(c.method, c.path, c.form, c.headers...)
		if status != c.want {
			t.Errorf("%s: status %d, want %d\n%s", c.name, status, c.want, body)
		}
		if csp := head.Get("Content-Security-Policy"); !strings.Contains(csp, "frame-ancestors 'none'") || head.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: policy %q", c.name, csp)
		}
		if strings.HasPrefix(c.path, "/console/") && c.want != 403 && c.want != 303 && !strings.HasPrefix(head.Get("Content-Type"), "text/html") {
			t.Errorf("%s: %s", c.name, head.Get("Content-Type"))
		}
		if c.want == 200 && c.method == get && !strings.Contains(body, "<main>") {
			t.Errorf("%s: %s", c.name, body)
		}
	}
	if status, _, head := r.visit(get, "/console/access", "", cookie); status != 200 {
		t.Error(status)
	} else if status, _, _ := r.visit(get, "/console/access", "", cookie, "If-None-Match: "+head.Get("ETag")); status != 304 && status != 200 {
		t.Errorf("with its validator: %d", status)
	}
	if status, _, _ := r.visit(post, "/console/leave", "x=1", cookie); status != 200 {
		t.Errorf("leave: %d", status)
	}
	if status, _, _ := r.visit(get, "/console/questions", "", cookie); status != 401 {
		t.Errorf("after leaving: %d", status)
	}
}

// TestOwners: the kernel names the user of each end of a connection of this machine, and none of an
// end that is closed, which has uid 0 there.
func TestOwners(t *testing.T) {
	o, err := OpenOwners()
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		dial := func() (client, server net.Conn) {
			t.Helper()
			client, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			if server, err = l.Accept(); err != nil {
				t.Fatal(err)
			}
			return client, server
		}
		ask := func(server net.Conn) (uint32, error) {
			return o.of(server.RemoteAddr().(*net.TCPAddr).AddrPort(), server.LocalAddr().(*net.TCPAddr).AddrPort())
		}
		client, server := dial()
		if uid, err := ask(server); err != nil || uid != uint32(os.Geteuid()) {
			t.Errorf("%s: uid %d, %v", at, uid, err)
		}
		client.Close()
		if uid, err := ask(server); err == nil {
			t.Errorf("%s: a closed end is uid %d's", at, uid)
		}
		server.Close()
		if uid, err := o.of(netip.MustParseAddrPort("127.0.0.1:1"), netip.MustParseAddrPort("127.0.0.1:2")); err == nil {
			t.Errorf("no connection is uid %d's", uid)
		}
	}
}

// TestResetConnection: a connection of this machine whose end was reset isn't taken for one from
// another machine, whichever of the machine's addresses it has.
func TestResetConnection(t *testing.T) {
	o, err := OpenOwners()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{cfg: Config{Owners: o}}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		own := p.Addr()
		l, err := net.Listen("tcp", netip.AddrPortFrom(own, 0).String())
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		r := httptest.NewRequestWithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, server.LocalAddr()), "GET", "/", nil)
		r.RemoteAddr = server.RemoteAddr().String()
		if user, err := s.userOf(r, newPeer(server, false, nil)); err != nil || user != fmt.Sprintf("uid:%d", os.Geteuid()) {
			t.Errorf("control: %v: %q, %v", own, user, err)
		}
		client.(*net.TCPConn).SetLinger(0)
		client.Close()
		if _, err := server.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("%v: not reset: %v", own, err)
		}
		if user, err := s.userOf(r, newPeer(server, false, nil)); err == nil {
			t.Errorf("%v: a connection that was reset is %q's", own, user)
		}
		if p.Bits() > own.BitLen()-2 {
			continue
		}
		next := own.AsSlice() // on the same link
		next[len(next)-1] ^= 1
		if other, _ := netip.AddrFromSlice(next); !own.IsLoopback() && !o.foreign(other, own) {
			t.Errorf("%v isn't foreign to %v", other, own)
		}
	}
}

// TestConsoleOwner: the cookie of one user doesn't let another user's process in. The
// test's is the other: its cookie has a token of uid 4002.
func TestConsoleOwner(t *testing.T) {
	r, h := lobby(t)
	other := member(t, h, 4002, "operator")
	code, err := hub.OpenConsole.Do(t.Context(), h, other, hub.None{})
	if err != nil {
		t.Fatal(err)
	}
	if status, body, _ := r.visit(get, "/enter?code="+code.Code, ""); status != 401 {
		t.Errorf("another user's code: status %d: %s", status, body)
	}
	tok, err := h.Enter(t.Context(), code.Code, "n", "") // as its own user would
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(r.tcp)
	if status, body, _ := r.visit(get, "/console/runs", "", fmt.Sprintf("Cookie: __Host-palyra-%s=%s", port, tok.Secret)); status != 401 {
		t.Errorf("status %d: %s", status, body)
	}
	if status, body, _ := r.visit(get, "/console/runs", "", r.letIn(h)); status != 200 {
		t.Errorf("control: status %d: %s", status, body)
	}
}
