// Package console shows the operations of a hub to people, as pages in a browser.
//
//	c, err := console.New(console.Config{Door: hub})
//	api, err := httpapi.New(httpapi.Config{Hub: hub, Console: c})
//
// Pages are made here, whole, by html/template; a script of the console's own replaces a page's
// main part when it has changed. Without scripts every page reads and every button works, but those
// for passkeys. A worker keeps styles, scripts and a page for when palyrad doesn't answer in the
// browser, and no other page. Nothing comes from another place: style, script and icon are in the
// binary, and the policy of each answer (Content-Security-Policy) permits no others, no inline
// ones, no frames around a page, and no text made into elements (Trusted Types).
//
// # Contract
//
// A page asks the hub for operations in its visitor's name, as any client does, and shows no more
// than their answers. There is no state but the codes at the hub's [hub.Door] and when each
// browser's token was last used. A browser enters with a code of its user's, in a form that it
// must send by a click, or with a signature of that user's passkey, and has a token of that user's
// in a cookie from then on: 12 hours, or 2 without a click. Leaving revokes it.
//
// All text that isn't the console's comes out with control characters and those that turn or hide
// text visible ([visible]).
//
// # What it does not protect against
//
// Another program of the visitor's own user, which can have a code itself. Extensions of the
// browser, which read and click all there is.
package console

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	plain "text/template"
	"time"

	"palyra/hub"
	"palyra/internal/fault"
	"palyra/transport/api"
	"palyra/transport/behind"
)

// Config says what the console has besides the hub.
type Config struct {
	// Door lets browsers in. It is required.
	Door hub.Door
	// Notifier tells open pages that there is something new. Default: they ask for it.
	Notifier hub.Notifier
}

// Console is a [behind.Pages]; safe for concurrent use.
type Console struct {
	cfg    Config
	pages  map[string]*template.Template // by file name; immutable
	assets map[string]asset              // by name; immutable

	mu   sync.Mutex
	used map[string]time.Time // by token: its browser's last click; guarded by mu
}

var _ behind.Pages = (*Console)(nil)

// idle is how long a browser may go without a click.
const idle = 2 * time.Hour

// Places of the console.
const (
	root  = "/console/"
	enter = "/enter"
	first = root + "questions"
)

//go:embed pages/*.html
var pageFiles embed.FS

//go:embed assets
var assetFiles embed.FS

// Those that name others, in the order to make them: each has the names that are known by then. The
// icons that aren't text were drawn by a browser:
//
//	chromium --headless --screenshot=icon-512.png --window-size=512,512 \
//	  --default-background-color=00000000 icon.svg
var naming = []string{"offline.html", "console.webmanifest", "worker.js", "shell.js"}

// asset is a file whose name has its digest, so that a browser keeps it.
type asset struct {
	media  string
	body   []byte
	packed []byte // by gzip; nil: it's packed as it is
}

var media = map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
	".html": "text/html; charset=utf-8", ".webmanifest": "application/manifest+json", ".png": "image/png"}

// New returns a Console.
func New(cfg Config) (*Console, error) {
	if cfg.Door == nil {
		return nil, fault.New(fault.Internal, "internal", "make console", errors.New("Config.Door is nil"))
	}
	c := &Console{cfg: cfg, pages: make(map[string]*template.Template), assets: make(map[string]asset), used: make(map[string]time.Time)}
	named := make(map[string]string)
	add := func(name string, b []byte) {
		sum := sha256.Sum256(b)
		ext := path.Ext(name)
		full := strings.TrimSuffix(name, ext) + "-" + hex.EncodeToString(sum[:8]) + ext
		a := asset{media: media[ext], body: b}
		if ext != ".png" {
			a.packed = pack(b)
		}
		c.assets[full], named[name] = a, "/assets/"+full
	}
	later := make(map[string]string)
	if err := each(assetFiles, "assets", func(name string, b []byte) error {
		if slices.Contains(naming, name) {
			later[name] = string(b)
		} else {
			add(name, b)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	words := funcs(named)
	for _, name := range naming {
		t, err := plain.New(name).Funcs(plain.FuncMap{"asset": words["asset"], "shell": func() (string, error) { return shell(named) }}).Parse(later[name])
		var b bytes.Buffer
		if err == nil {
			err = t.Execute(&b, nil)
		}
		if err != nil {
			return nil, err
		}
		add(name, b.Bytes())
	}
	layout, err := pageFiles.ReadFile("pages/layout.html")
	if err != nil {
		return nil, err
	}
	return c, each(pageFiles, "pages", func(name string, b []byte) error {
		if name == "layout.html" {
			return nil
		}
		t, err := template.New("layout").Funcs(words).Option("missingkey=error").Parse(string(layout))
		if err == nil {
			_, err = t.Parse(string(b))
		}
		c.pages[strings.TrimSuffix(name, ".html")] = t
		return err
	})
}

// shell returns the assets that a browser keeps for when palyrad doesn't answer: styles, scripts,
// an icon and the page that says so.
func shell(named map[string]string) (string, error) {
	var all []string
	for name, at := range named {
		if strings.HasSuffix(name, ".css") || strings.HasSuffix(name, ".js") || name == "icon.svg" || name == "offline.html" {
			all = append(all, at)
		}
	}
	slices.Sort(all)
	b, err := json.Marshal(all)
	return string(b), err
}

func each(files embed.FS, dir string, do func(name string, b []byte) error) error {
	names, err := fs.ReadDir(files, dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		b, err := files.ReadFile(dir + "/" + n.Name())
		if err == nil {
			err = do(n.Name(), b)
		}
		if err != nil {
			return fmt.Errorf("%s/%s: %w", dir, n.Name(), err)
		}
	}
	return nil
}

// policy is the Content-Security-Policy of every answer. The one policy for trusted types is
// shell.js's, which makes of any text the address of the worker.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; manifest-src 'self'; worker-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types shell"

func secure(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()")
}

// view is what a page's template gets.
type view struct {
	Title  string
	At     string // the page's part of the navigation
	Caller hub.Caller
	Status hub.Status
	Said   string // what the page before did
	Live   bool   // the main part is fetched again
	Count  int    // questions that wait
	Topics string // of the notices at which it is
	Here   string // the page's own address
	Data   any
}

// show writes a page. Where the browser has it already, its validator says so.
func (c *Console) show(w http.ResponseWriter, r *http.Request, status int, page string, v view) error {
	var b bytes.Buffer
	if err := c.pages[page].Execute(&b, v); err != nil {
		return fault.New(fault.Internal, "internal", "show page "+page, err)
	}
	body := visible(b.Bytes())
	secure(w)
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	sum := sha256.Sum256(body)
	tag := `W/"` + base64.RawURLEncoding.EncodeToString(sum[:18]) + `"` // packed or not
	h.Set("ETag", tag)
	if status == http.StatusOK && r != nil && r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	if packs(w, r) {
		body = pack(body)
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // the browser may have gone
	return nil
}

// packers are kept for the next page: each takes some 800 KB.
var packers = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}

// pack compresses b. No page has a secret in it that another site's requests could have it repeat:
// those come without a cookie.
func pack(b []byte) []byte {
	var out bytes.Buffer
	z := packers.Get().(*gzip.Writer)
	defer packers.Put(z)
	z.Reset(&out)
	_, _ = z.Write(b) // to memory
	_ = z.Close()
	return out.Bytes()
}

// packs reports whether an answer is to be compressed, and says so in its header.
func packs(w http.ResponseWriter, r *http.Request) bool {
	w.Header().Add("Vary", "Accept-Encoding")
	if r == nil {
		return false
	}
	for word := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		if strings.TrimSpace(word) == "gzip" {
			w.Header().Set("Content-Encoding", "gzip")
			return true
		}
	}
	return false
}

// Refuse implements behind.Pages.
func (c *Console) Refuse(w http.ResponseWriter, p api.Problem) {
	page, data := "problem", any(p)
	if p.Status == http.StatusUnauthorized {
		page, data = "stranger", c.stranger(p.Detail)
	}
	_ = c.show(w, nil, p.Status, page, view{Title: p.Title, Data: data})
}

// Open implements behind.Pages.
func (c *Console) Open(w http.ResponseWriter, r *http.Request, v *behind.Visitor) error {
	switch {
	case r.URL.Path == "/":
		return see(w, r, first)
	case r.URL.Path == enter && r.Method == http.MethodPost:
		return c.enter(w, r, v)
	case r.URL.Path == enter:
		return c.door(w, r, v)
	}
	a, ok := c.assets[r.PathValue("name")]
	if !ok {
		return fault.New(fault.NotFound, "not_found", "get asset", nil)
	}
	secure(w)
	h := w.Header()
	h.Set("Content-Type", a.media)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	if strings.HasPrefix(r.PathValue("name"), "worker-") {
		h.Set("Service-Worker-Allowed", root) // wider than the folder that it's in
	}
	body := a.body
	if a.packed != nil && packs(w, r) {
		body = a.packed
	}
	_, _ = w.Write(body)
	return nil
}

// door shows the form that enters with the code of the address. The browser that comes first with a
// code is the only one that can use it: a cookie tells it from others. A code isn't spent before
// the click, so a program that looks at addresses doesn't spend it.
func (c *Console) door(w http.ResponseWriter, r *http.Request, v *behind.Visitor) error {
	code := r.URL.Query().Get("code")
	if code == "" {
		return c.signIn(w, r, v)
	}
	nonce := nonceOf(r, v)
	if nonce == "" {
		nonce = rand.Text()
	}
	if err := c.cfg.Door.Knock(code, nonce, v.User); err != nil {
		return err
	}
	http.SetCookie(w, cookie(v.Cookie+"-enter", nonce, time.Minute))
	return c.show(w, r, http.StatusOK, "door", view{Title: "Enter", Data: code})
}

func nonceOf(r *http.Request, v *behind.Visitor) string {
	if k, err := r.Cookie(v.Cookie + "-enter"); err == nil && len(k.Value) <= 64 {
		return k.Value
	}
	return ""
}

func (c *Console) enter(w http.ResponseWriter, r *http.Request, v *behind.Visitor) error {
	var t hub.TokenSecret
	var err error
	if v.Form.Has("signature") {
		t, err = c.enterByPasskey(r, v)
	} else {
		t, err = c.cfg.Door.Enter(r.Context(), v.Form.Get("code"), nonceOf(r, v), v.User)
	}
	if err != nil {
		return err
	}
	http.SetCookie(w, cookie(v.Cookie+"-enter", "", 0))
	http.SetCookie(w, cookie(v.Cookie, t.Secret, time.Until(t.Expires)))
	c.touch(t.ID)
	return see(w, r, first)
}

// cookie returns a cookie for this host alone; no time removes it. Browsers hold localhost to be
// secure.
func cookie(name, value string, age time.Duration) *http.Cookie {
	k := &http.Cookie{Name: name, Value: value, Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode, MaxAge: int(age / time.Second)}
	if age <= 0 {
		k.MaxAge = -1
	}
	return k
}

// see sends the browser to another page. A page that a stranger's link led to gets no cookie
// (SameSite), so the way goes over a page of ours.
func see(w http.ResponseWriter, r *http.Request, to string) error {
	secure(w)
	http.Redirect(w, r, to, http.StatusSeeOther)
	return nil
}

// maxUsed bounds the browsers that are remembered: those of all members' tokens, which the hub
// bounds.
const maxUsed = 1 << 14

// touch notes a click of a token's browser.
func (c *Console) touch(token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if len(c.used) >= maxUsed {
		for t, at := range c.used {
			if now.Sub(at) > idle {
				delete(c.used, t)
			}
		}
	}
	c.used[token] = now
}

// stale reports whether a token's browser had no click for too long. One that isn't known, as
// after a restart, has had one now.
func (c *Console) stale(token string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.used[token]
	if !ok {
		c.used[token] = time.Now()
	}
	return ok && time.Since(at) > idle
}

// live is the header of the script's requests, which are no clicks.
const live = "Palyra-Live"

// Page implements behind.Pages.
func (c *Console) Page(w http.ResponseWriter, r *http.Request, v *behind.Visitor) error {
	t := &turn{c: c, w: w, r: r, v: v, ctx: r.Context(), over: func() {}, words: strings.Split(strings.TrimPrefix(r.URL.Path, root), "/")}
	defer func() { t.over() }()
	if token := v.Caller.Token; token != "" {
		if c.stale(token) {
			return t.leave("This browser had no click for two hours. A passkey, or palyra console open, lets it in again.")
		}
		if r.Header.Get(live) == "" && t.words[0] != feedWord {
			c.touch(token)
		}
	}
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	for _, p := range table {
		if p.method == method && len(p.words) == len(t.words) && p.words[0] == t.words[0] {
			match := true
			for i, word := range p.words {
				match = match && (word == "*" && t.words[i] != "" || word == t.words[i])
			}
			if match {
				return p.do(t)
			}
		}
	}
	return fault.New(fault.NotFound, "not_found", "find page", nil)
}

// turn is a visitor's request for a page.
type turn struct {
	c     *Console
	w     http.ResponseWriter
	r     *http.Request
	v     *behind.Visitor
	ctx   context.Context // of the request
	over  func()          // ends the count of the newest answer
	words []string        // of the path, behind root
	count int             // questions that wait, as far as the page knows
}

// show writes a page with the state of the daemon on top.
func (t *turn) show(page, title string, data any) error { return t.showAs(page, title, data, true) }

// showStill is show for a page that isn't fetched again.
func (t *turn) showStill(page, title string, data any) error {
	return t.showAs(page, title, data, false)
}

func (t *turn) showAs(page, title string, data any, live bool) error {
	st, err := hub.GetStatus.Do(t.next(), t.v.Hub, t.v.Caller, hub.None{})
	if err != nil {
		return err
	}
	if st.StatusDetail != nil {
		t.count = st.Counts.ApprovalsPending
	}
	return t.c.show(t.w, t.r, http.StatusOK, page, view{Title: title, Count: t.count, At: t.words[0], Caller: t.v.Caller, Status: st, Said: said[t.r.URL.Query().Get("said")],
		Live: live, Topics: followed(t.words[0]), Here: t.r.URL.RequestURI(), Data: data})
}

// see ends an act: the browser gets a page, which says what was done.
func (t *turn) see(page, did string) error {
	return see(t.w, t.r, root+page+"?said="+url.QueryEscape(did))
}

// said is what pages say of an act.
var said = map[string]string{
	"approved":   "You said yes.",
	"denied":     "You said no.",
	"cancelled":  "The run is cancelled.",
	"stopped":    "All runs are cancelled and new ones are refused.",
	"resumed":    "New runs are taken again.",
	"discarded":  "The layer is removed.",
	"began":      "The call is made. If policy asks a person, its question is here.",
	"revoked":    "The token is revoked.",
	"added":      "The passkey is added.",
	"paired":     "The device is paired when it has its certificate.",
	"unpaired":   "The pairing is refused.",
	"removed":    "The passkey is revoked, and its member’s other browsers have left.",
	"ended":      "The grant is revoked.",
	"reloaded":   "The policies are read again.",
	"accepted":   "The instructions are accepted, for your agents.",
	"disowned":   "Those instructions count for your agents no more.",
	"remembered": "It is remembered.",
	"forgotten":  "What was ticked is forgotten.",
}

// leave revokes the browser's token and shows the page for strangers.
func (t *turn) leave(why string) error {
	if token := t.v.Caller.Token; token != "" {
		if _, err := hub.RevokeToken.Do(t.next(), t.v.Hub, t.v.Caller, hub.TokenChange{ID: token}); err != nil {
			return err
		}
	}
	http.SetCookie(t.w, cookie(t.v.Cookie, "", 0))
	return t.c.show(t.w, nil, http.StatusOK, "stranger", view{Title: "You have left", Data: t.c.stranger(why)})
}
