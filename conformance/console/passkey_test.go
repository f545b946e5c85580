package console

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/webauthn"
	"github.com/chromedp/chromedp"
)

// authenticator gives the browser a platform authenticator of software, whose person is there and
// verified.
func authenticator(t *testing.T, ctx context.Context) (verified func(bool) action) {
	t.Helper()
	do(t, ctx, send(webauthn.Enable, webauthn.EnableParams{}))
	id := get(t, ctx, func(ctx context.Context, target *chromedp.Target) (webauthn.AuthenticatorID, error) {
		yes := true
		r, err := cdp.Call(ctx, target, webauthn.AddVirtualAuthenticator, webauthn.AddVirtualAuthenticatorParams{Options: &webauthn.VirtualAuthenticatorOptions{
			Protocol: webauthn.AuthenticatorProtocolCtap2, Transport: webauthn.AuthenticatorTransportInternal,
			HasResidentKey: yes, HasUserVerification: yes, AutomaticPresenceSimulation: yes, IsUserVerified: yes}})
		return r.AuthenticatorID, err
	})
	return func(yes bool) action {
		return send(webauthn.SetUserVerified, webauthn.SetUserVerifiedParams{AuthenticatorID: id, IsUserVerified: yes})
	}
}

const (
	leave  = `form[action="/console/leave"] button`
	signIn = `form[action="/enter"] button`
)

// addPasskey has a browser that is in add a passkey as a person does.
func addPasskey(t *testing.T, ctx context.Context, h *house, name string) {
	t.Helper()
	do(t, ctx, goTo(h.url+"/console/access"), click(`a[href="/console/access/passkey"]`), shown("input[name=name]"),
		chromedp.SendKeys(chromedp.CSS("input[name=name]"), name), click("#passkey button"), until(".said", "The passkey is added"), see(name))
}

// keep has the page keep what its form sends, in this tab.
const keep = `(() => { const send = HTMLFormElement.prototype.submit; HTMLFormElement.prototype.submit = function () {
	sessionStorage.sent = new URLSearchParams(new FormData(this)).toString(); send.call(this); }; })()`

// TestPasskey: a browser that came in by a code adds a passkey, leaves, and comes back by it alone. It
// adds no other then. A form that is sent again, and a passkey that is revoked, let no browser in.
func TestPasskey(t *testing.T) {
	h := newHouse(t)
	ctx := browser(t)
	authenticator(t, ctx)
	h.enter(ctx)
	do(t, ctx, goTo(h.url+"/console/access"), see("There are none"))
	addPasskey(t, ctx, h, "this laptop")
	do(t, ctx, goTo(h.url+"/console/access/passkey"), shown("input[name=name]"), chromedp.SendKeys(chromedp.CSS("input[name=name]"), "twice"), click("#passkey button"),
		until("#passkey-note", "There is a passkey of yours"))
	do(t, ctx, click(leave), see("palyra console open"), shown(signIn))
	if out := h.palyra("token", "ls", "--json"); strings.Contains(out, `"active"`) {
		t.Fatalf("control: a token is active: %s", out)
	}
	do(t, ctx, run(keep), click(signIn), shown("nav"), see("None waits"))
	sent := get(t, ctx, js[string]("sessionStorage.sent"))
	if f, err := url.ParseQuery(sent); err != nil || f.Get("signature") == "" {
		t.Fatalf("control: the form sent %q", sent)
	}
	do(t, ctx, goTo(h.url+"/console/access/passkey"), see("came in by a code within five minutes"))
	if n := get(t, ctx, js[int]("document.querySelectorAll('#passkey').length")); n != 0 {
		t.Error("a browser that came in by a passkey is offered another")
	}
	list := h.palyra("passkeys", "ls")
	id := regexp.MustCompile(`psk_[0-9a-f]{32}`).FindString(list)
	if id == "" || !strings.Contains(list, "this laptop") || !strings.Contains(list, "active") {
		t.Fatalf("palyra passkeys ls: %s", list)
	}
	do(t, ctx, click(leave), see("You have left"), run(`fetch('/enter').then(() => fetch('/enter', { method: 'POST', body: new URLSearchParams(sessionStorage.sent), redirect: 'manual' }))
		.then((r) => { document.body.dataset.again = r.status; })`), shown(`body[data-again="401"]`))
	do(t, ctx, goTo(h.url+"/"), click(signIn), shown("nav"))
	h.palyra("passkeys", "revoke", id)
	do(t, ctx, see("palyra console open")) // the open page leaves by itself
	do(t, ctx, shown(signIn), click(signIn), see("isn't known here, or was revoked"))
	h.enter(ctx)
	addPasskey(t, ctx, h, "again")
	do(t, ctx, click(`form[action^="/console/access/passkeys/"] button`), until(".said", "The passkey is revoked"), see("There are none"))
}

// TestPasskeyPerson: without a verified person neither the browser nor palyrad takes a signature, and
// what a page of another port had signed is good nowhere.
func TestPasskeyPerson(t *testing.T) {
	h := newHouse(t)
	ctx := browser(t)
	verified := authenticator(t, ctx)
	h.enter(ctx)
	addPasskey(t, ctx, h, "laptop")
	do(t, ctx, click(leave), shown(signIn), verified(false), click(signIn), until("#passkey-note", "No passkey was given"))
	// A page that asks for less than palyrad's gets no further.
	do(t, ctx, run(`(() => { const ask = navigator.credentials.get; navigator.credentials.get = function (o) { o.publicKey.userVerification = 'discouraged'; return ask.call(this, o); }; })()`),
		click(signIn), see("didn't verify the person"))
	do(t, ctx, verified(true), shown(signIn), click(signIn), shown("nav"), click(leave), shown(signIn))

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<!doctype html><body>evil") }))
	}()
	evil := fmt.Sprintf("http://localhost:%d", l.Addr().(*net.TCPAddr).Port)
	for _, x := range []struct{ origin, uid, want string }{{evil, "", "401"}, {h.url, "65534", "401"}, {h.url, "", "303"}} {
		if x.uid != "" && os.Geteuid() != 0 {
			t.Log("another user's process is tried as root alone")
			continue
		}
		if status := signFrom(t, ctx, h, x.origin, x.uid); status != x.want {
			t.Errorf("a signature of a page at %s, sent by the user %q: %s, want %s", x.origin, x.uid, status, x.want)
		}
	}
}

// signFrom has a page of an origin sign a challenge that this process got of palyrad, sends it as a
// user, "" for its own, and returns the status.
func signFrom(t *testing.T, ctx context.Context, h *house, origin, uid string) string {
	t.Helper()
	resp, err := http.Get(h.url + "/enter")
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	m := regexp.MustCompile(`data-rp="localhost" data-challenge="([^"]+)"`).FindSubmatch(page)
	if err != nil || m == nil {
		t.Fatalf("no challenge in %s", page)
	}
	do(t, ctx, goTo(origin), shown("body"), run(fmt.Sprintf(`(async () => {
		const encode = (b) => btoa(String.fromCharCode(...new Uint8Array(b))).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
		const q = %q;
		const c = await navigator.credentials.get({ publicKey: { challenge: Uint8Array.from(atob(q.replaceAll('-', '+').replaceAll('_', '/')), (c) => c.charCodeAt(0)), rpId: 'localhost', userVerification: 'required' } });
		document.body.dataset.got = JSON.stringify({ challenge: q, id: encode(c.rawId), data: encode(c.response.authenticatorData), client: encode(c.response.clientDataJSON), signature: encode(c.response.signature), user: encode(c.response.userHandle) });
	})()`, m[1])), shown("body[data-got]"))
	var got map[string]string
	if err := json.Unmarshal([]byte(get(t, ctx, js[string]("document.body.dataset.got"))), &got); err != nil {
		t.Fatal(err)
	}
	form := url.Values{}
	for name, value := range got {
		form.Set(name, value)
	}
	args := []string{"curl", "-s", "-o", os.DevNull, "-w", "%{http_code}", "-d", form.Encode(), h.url + "/enter"}
	for _, c := range resp.Cookies() {
		args = append(args, "-H", "Cookie: "+c.Name+"="+c.Value)
	}
	if uid != "" {
		args = append([]string{"setpriv", "--reuid", uid, "--regid", uid, "--clear-groups"}, args...)
	}
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// TestPasskeyAnswer: a yes that policy wants a passkey for is given in the console alone, and by a
// verified person; the run goes on, and its receipt verifies with the signature. Without a passkey,
// and without scripts, the page says what to do.
func TestPasskeyAnswer(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "policy")
	h := newHouse(t, func(bin string) string {
		if out, err := exec.Command(filepath.Join(bin, "palyra"), "policy", "init", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		rule := `@id("passkey_for_programs") @untested("here")
forbid (principal, action == Palyra::Action::"approval.resolve", resource)
when { context.tool == "process.run" && context.scope == "once" } unless { context.passkey };
`
		if err := os.WriteFile(filepath.Join(dir, "60-passkey.cedar"), []byte(rule), 0o600); err != nil {
			t.Fatal(err)
		}
		return "[policy]\ndir = \"" + dir + "\"\n"
	})
	ctx := browser(t)
	verified := authenticator(t, ctx)
	h.enter(ctx)
	over := h.call("touch", "a")
	do(t, ctx, see("touch"), click("article a"), see("A yes takes your passkey"), click("button.yes"), see("You have no passkey that can sign"), see("Add a passkey"))
	addPasskey(t, ctx, h, "laptop")

	list := h.palyra("approvals", "ls", "--json")
	id, capsule := regexp.MustCompile(`apr_[0-9a-f]{32}`).FindString(list), regexp.MustCompile(`"capsule": ?"(sha256:[0-9a-f]{64})"`).FindStringSubmatch(list)
	if id == "" || capsule == nil {
		t.Fatalf("palyra approvals ls: %s", list)
	}
	if text := h.palyra("approvals", "show", id); !strings.Contains(text, "a yes takes yours") {
		t.Errorf("palyra approvals show says nothing of a passkey: %s", text)
	}
	out, err := h.command("approvals", "approve", id, "--capsule", capsule[1]).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "takes a passkey") || !strings.Contains(string(out), "palyra console open") {
		t.Errorf("palyra approvals approve: %v: %s", err, out)
	}

	do(t, ctx, goTo(h.url+"/console/questions"), click("article a"), see("A yes takes your passkey"), verified(false), click("button.yes"), until("#passkey-note", "No passkey was given"))
	noScripts := send(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	do(t, ctx, noScripts, goTo(h.url+"/console/questions/"+id), click("button.yes"), see("This yes takes a passkey"), see("with scripts alone"))
	do(t, ctx, send(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{}), goTo(h.url+"/console/questions/"+id), see("A yes takes your passkey"))
	select {
	case status := <-over:
		t.Fatalf("it ran without a passkey: %d", status)
	default:
	}
	// A page that has another answer signed than the one that it sends.
	do(t, ctx, verified(true), run(`document.querySelector('input[name=comment]').value = 'fine'`),
		run(`(() => { const send = HTMLFormElement.prototype.submit; HTMLFormElement.prototype.submit = function () { this.elements.comment.value = 'another'; send.call(this); }; })()`),
		click("button.yes"), see("client data for another challenge"))
	do(t, ctx, goTo(h.url+"/console/questions/"+id), see("A yes takes your passkey"), run(keep), click("button.yes"), until(".said", "You said yes"))
	if status := <-over; status != 0 {
		t.Errorf("the call ended with %d", status)
	}
	if sent := get(t, ctx, js[string]("sessionStorage.sent")); !strings.Contains(sent, "signature=") {
		t.Errorf("the form sent %q", sent)
	}
	do(t, ctx, goTo(h.url+"/console/runs"), click("main tbody a"), see("Receipt"), click(`main a[href^="/console/receipts/"]`), see("Verified by palyrad"), see("with the passkey psk_"))

	// A yes that policy wants a passkey for in one scope alone: the page for it asks then.
	over = h.call("touch", "b")
	do(t, ctx, goTo(h.url+"/console/questions"), click("article a"), see("A yes takes your passkey"), click(`input[value=session]`), click("button.yes"), until(".said", "You said yes"))
	if status := <-over; status != 0 {
		t.Errorf("the call ended with %d", status)
	}
	over = h.call("touch", "c")
	do(t, ctx, goTo(h.url+"/console/questions"), click("article a"), see("A yes takes your passkey"), run(`document.querySelector('form[data-signs]').removeAttribute('data-signs')`),
		click("button.yes"), see("The signature is good for nothing else"), click("#passkey button"), until(".said", "You said yes"))
	if status := <-over; status != 0 {
		t.Errorf("the call ended with %d", status)
	}
	state := filepath.Join(filepath.Dir(h.config), "state")
	if out, err := exec.Command(filepath.Join(h.bin, "palyra"), "journal", "verify", "--state", state).CombinedOutput(); err != nil {
		t.Errorf("palyra journal verify: %v: %s", err, out)
	}
}

// TestPasskeyPlaces: at an IP address, and without scripts, the page says how to get in.
func TestPasskeyPlaces(t *testing.T) {
	h := newHouse(t)
	ctx := browser(t)
	do(t, ctx, goTo(strings.Replace(h.url, "localhost", "127.0.0.1", 1)), see("palyra console open"), shown("#elsewhere a"))
	if got := get(t, ctx, js[string]("document.querySelector('#elsewhere a').href")); got != h.url+"/" {
		t.Errorf("it sends to %q", got)
	}
	hidden := `document.querySelector('#passkey').checkVisibility()`
	if get(t, ctx, js[bool](hidden)) {
		t.Error("a passkey is asked for where there can be none")
	}
	do(t, ctx, goTo(h.url), shown(signIn), send(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}),
		goTo(h.url+"/console/access"), see("palyra console open"), see("With scripts, a passkey"))
	if get(t, ctx, js[bool](hidden)) {
		t.Error("a button that does nothing is shown")
	}
	do(t, ctx, send(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{}))
	h.enter(ctx)
	authenticator(t, ctx)
	addPasskey(t, ctx, h, `<b>"laptop'</b>`)
	for _, p := range []string{"access", "access/passkey"} {
		do(t, ctx, chromedp.EmulateViewport(360, 800), goTo(h.url+"/console/"+p), shown("main h1"))
		if wide := get(t, ctx, js[int64]("document.documentElement.scrollWidth")); wide > 360 {
			t.Errorf("%s is %d wide in a window of 360", p, wide)
		}
	}
}

// TestPasskeyTLS: over TLS the console is at the certificate's name, and so are its passkeys.
func TestPasskeyTLS(t *testing.T) {
	const name = "palyra.localhost" // browsers know it for this machine
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"*.example", name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	cert, err := x509.CreateCertificate(rand.Reader, leaf, leaf, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	spki, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for file, b := range map[string]*pem.Block{"cert": {Type: "CERTIFICATE", Bytes: cert}, "key": {Type: "PRIVATE KEY", Bytes: pkcs8}} {
		path := filepath.Join(dir, file)
		if err := os.WriteFile(path, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PALYRA_LISTEN_TLS_"+strings.ToUpper(file), path)
	}
	h := newHouse(t)
	h.url = strings.Replace(h.url, "http://localhost", "https://"+name, 1)
	sum := sha256.Sum256(spki)
	trust := chromedp.Flag("ignore-certificate-errors-spki-list", base64.StdEncoding.EncodeToString(sum[:]))
	ctx := browser(t, trust)
	authenticator(t, ctx)
	if at := h.palyra("console", "open", "--print"); !strings.HasPrefix(at, h.url+"/enter?code=") {
		t.Fatalf("the console is at %.60s, want %s", at, h.url)
	}
	h.enter(ctx)
	addPasskey(t, ctx, h, "laptop")
	do(t, ctx, click(leave), shown(signIn), click(signIn), shown("nav"))
	do(t, ctx, goTo(strings.Replace(h.url, name, "localhost", 1)), shown("#elsewhere a"))

	// A phone reads the code, gets a passkey of its own and answers.
	phone := browser(t, trust)
	authenticator(t, phone)
	lines := strings.Split(h.palyra("console", "open", "--qr"), "\n")
	at := lines[len(lines)-1]
	if !strings.HasPrefix(at, h.url+"/enter?code=") || len(lines) < 20 || !strings.Contains(lines[4], "█") {
		t.Fatalf("the QR code is\n%s", strings.Join(lines, "\n"))
	}
	do(t, phone, chromedp.EmulateViewport(360, 800), goTo(at), click("main button"), shown("nav"))
	addPasskey(t, phone, h, "phone")
	over := h.call("touch", "a")
	do(t, phone, goTo(h.url+"/console/questions"), click("article a"), see("May this run?"), click("button.yes"), until(".said", "You said yes"))
	if status := <-over; status != 0 {
		t.Errorf("the call ended with %d", status)
	}
	do(t, phone, click(leave), shown(signIn), click(signIn), shown("nav"))
}
