package world

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cgi"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
)

// counted is a connection whose bytes count.
type counted struct {
	net.Conn
	w             *World
	local         netip.AddrPort
	read, written atomic.Int64
	closed        atomic.Bool
	hello         atomic.Pointer[tls.ConnectionState]
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.passed(&c.read, n)
	return n, err
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.passed(&c.written, n)
	return n, err
}

// passed counts bytes, and wakes Until with each MiB.
func (c *counted) passed(way *atomic.Int64, n int) {
	if now := way.Add(int64(n)); now>>20 != (now-int64(n))>>20 {
		c.w.mu.Lock()
		c.w.changedLocked()
		c.w.mu.Unlock()
	}
}

// Close closes it, and wakes Until.
func (c *counted) Close() error {
	err := c.Conn.Close()
	c.closed.Store(true)
	c.w.mu.Lock()
	c.w.changedLocked()
	c.w.mu.Unlock()
	return err
}

func (c *counted) seen() Connection {
	out := Connection{Local: c.local, Read: c.read.Load(), Written: c.written.Load(), Closed: c.closed.Load()}
	if s := c.hello.Load(); s != nil {
		out.ServerName, out.TLSVersion, out.Protocol = s.ServerName, s.Version, s.NegotiatedProtocol
	}
	return out
}

// listener notes the connections that arrive.
type listener struct {
	net.Listener
	w *World
}

// Accept waits for the next connection, and notes it.
func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	n := &counted{Conn: c, w: l.w, local: addrPort(c.LocalAddr())}
	l.w.mu.Lock()
	l.w.conns = append(l.w.conns, n)
	l.w.changedLocked()
	l.w.mu.Unlock()
	return n, nil
}

// ports says what is served where.
var ports = map[int]func(*World, net.Listener){
	7:    each((*World).echo),
	9:    each(func(*World, net.Conn) {}),
	13:   each((*World).hear),
	11:   each(func(_ *World, c net.Conn) { c.(*counted).Conn.(*net.TCPConn).SetLinger(0); c.Close() }),
	19:   each((*World).speak),
	53:   each((*World).serveTCP),
	80:   func(w *World, l net.Listener) { http.Serve(l, w.handler()) },
	443:  (*World).serveTLS,
	5432: each(func(_ *World, c net.Conn) { io.WriteString(c, "ready\n"); c.Close() }),
}

func each(f func(*World, net.Conn)) func(*World, net.Listener) {
	return func(w *World, l net.Listener) {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go f(w, c)
		}
	}
}

func (w *World) echo(c net.Conn) {
	defer c.Close()
	if b, err := io.ReadAll(c); err == nil {
		c.Write(b)
	}
}

func (w *World) speak(c net.Conn) {
	defer c.Close()
	line := []byte(strings.Repeat("for ever ", 1000))
	for {
		if _, err := c.Write(line); err != nil {
			return
		}
	}
}

// hears begins the names of the sockets that take packets and say nothing.
const hears = "hears-"

// mostHeard bounds what is kept of one connection or packet.
const mostHeard = 64 << 10

// hear keeps what comes, and says that it did.
func (w *World) hear(c net.Conn) {
	defer c.Close()
	b := make([]byte, 4096)
	for kept := 0; kept < mostHeard; {
		n, err := c.Read(b)
		kept += n
		w.noteHeard(addrPort(c.LocalAddr()), b[:n])
		if err != nil {
			return
		}
		if _, err := io.WriteString(c, "heard\n"); err != nil {
			return
		}
	}
}

// hearPackets keeps packets. To which of the world's addresses they came isn't known.
func (w *World) hearPackets(c net.PacketConn) {
	b := make([]byte, 4096)
	for {
		n, _, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		w.noteHeard(netip.AddrPort{}, b[:n])
	}
}

func (w *World) noteHeard(at netip.AddrPort, b []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heard = append(w.heard, said{at, string(b)})
	w.changedLocked()
}

// said is what was heard at once, and where.
type said struct {
	at   netip.AddrPort
	text string
}

func (w *World) serveTLS(l net.Listener) {
	config := &tls.Config{Certificates: []tls.Certificate{w.certificate}, NextProtos: []string{"h2", "http/1.1"}}
	s := &http.Server{Handler: w.handler(), TLSConfig: config}
	config.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		seen, c := h.Conn.(*counted), config.Clone()
		c.GetConfigForClient = nil
		c.VerifyConnection = func(s tls.ConnectionState) error { seen.hello.Store(&s); return nil }
		return c, nil
	}
	s.ServeTLS(l, "", "")
}

func (w *World) handler() http.Handler {
	mux := http.NewServeMux()
	pages(mux)
	mux.HandleFunc("/{$}", func(out http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(out, "%s at %s\n", r.Host, r.Context().Value(http.LocalAddrContextKey))
	})
	mux.HandleFunc("/latest/meta-data/", func(out http.ResponseWriter, r *http.Request) { io.WriteString(out, "the cloud's secret\n") })
	mux.HandleFunc("/bytes/{n}", func(out http.ResponseWriter, r *http.Request) {
		n, err := strconv.ParseInt(r.PathValue("n"), 10, 64)
		if err != nil {
			http.Error(out, err.Error(), http.StatusBadRequest)
			return
		}
		out.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		io.CopyN(out, zeros{}, n)
	})
	mux.HandleFunc("/forever", func(out http.ResponseWriter, r *http.Request) { io.Copy(flushing{out}, zeros{}) })
	mux.HandleFunc("/to", func(out http.ResponseWriter, r *http.Request) {
		to, err := url.QueryUnescape(r.URL.RawQuery)
		if err != nil {
			to = "/"
		}
		http.Redirect(out, r, to, http.StatusFound)
	})
	mux.HandleFunc("/sum", func(out http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		n, err := io.Copy(h, r.Body)
		fmt.Fprintf(out, "%d %x %v\n", n, h.Sum(nil), err)
	})
	mux.HandleFunc("/hold", w.hold)
	mux.HandleFunc("POST /dns-query", func(out http.ResponseWriter, r *http.Request) { // RFC 8484
		q, err := io.ReadAll(io.LimitReader(r.Body, 4096))
		if err != nil {
			return
		}
		out.Header().Set("Content-Type", "application/dns-message")
		out.Write(w.answer(q))
	})
	mux.HandleFunc("/repo.git/", w.git)
	mux.HandleFunc("/mod/", modules)
	mux.HandleFunc("/simple/", w.simple)
	mux.HandleFunc("/mcp/{kind}", w.mcp)
	mux.Handle("/private/", w.private())
	return w.noted(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if h := w.handlerOf(r.Host); h != nil {
			h.ServeHTTP(out, r)
			return
		}
		mux.ServeHTTP(out, r)
	}))
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

type flushing struct{ http.ResponseWriter }

func (f flushing) Write(b []byte) (int, error) {
	n, err := f.ResponseWriter.Write(b)
	f.ResponseWriter.(http.Flusher).Flush()
	return n, err
}

// git serves a repository, which MakeRepository made, as git's own program does.
func (w *World) git(out http.ResponseWriter, r *http.Request) {
	path, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		http.Error(out, "no git", http.StatusNotFound)
		return
	}
	h := cgi.Handler{Path: filepath.Join(strings.TrimSpace(string(path)), "git-http-backend"), Dir: w.Dir,
		Env: []string{"GIT_PROJECT_ROOT=" + w.Dir, "GIT_HTTP_EXPORT_ALL=1", "HOME=" + w.Dir}, InheritEnv: []string{"PATH"}}
	h.ServeHTTP(out, r)
}

// MakeRepository makes /repo.git with one commit, once: hello.txt says "from the world".
func (w *World) MakeRepository() error {
	if _, err := os.Stat(filepath.Join(w.Dir, "repo.git")); err == nil {
		return nil
	}
	from := filepath.Join(w.Dir, "from")
	if err := os.MkdirAll(from, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(from, "hello.txt"), []byte("from the world\n"), 0o644); err != nil {
		return err
	}
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"add", "."}, {"commit", "-q", "-m", "one"}, {"clone", "-q", "--bare", ".", "../repo.git"}} {
		c := exec.Command("git", args...)
		c.Dir = from
		c.Env = append(os.Environ(), "HOME="+w.Dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org",
			"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org", "GIT_AUTHOR_DATE=2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE=2026-01-01T00:00:00Z")
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("git %s: %w\n%s", args[0], err, out)
		}
	}
	return nil
}

// modules serves the Go module example.org/dep at v1.0.0 (GOPROXY=https://NAME/mod).
func modules(out http.ResponseWriter, r *http.Request) {
	const mod = "module example.org/dep\n"
	name, ok := strings.CutPrefix(r.URL.Path, "/mod/example.org/dep/@v/")
	switch {
	case ok && name == "list":
		io.WriteString(out, "v1.0.0\n")
	case ok && name == "v1.0.0.info":
		io.WriteString(out, `{"Version":"v1.0.0","Time":"2026-01-01T00:00:00Z"}`)
	case ok && name == "v1.0.0.mod":
		io.WriteString(out, mod)
	case ok && name == "v1.0.0.zip":
		out.Write(zipped("example.org/dep@v1.0.0/", [][2]string{{"go.mod", mod}, {"dep.go", "package dep\n\nconst Word = \"from the world\"\n"}}))
	default:
		http.NotFound(out, r)
	}
}

// wheel is a Python package, a module that says where it's from.
const wheel = "fromworld-1.0-py3-none-any.whl"

// simple serves it (PEP 503; pip --index-url https://NAME/simple).
func (w *World) simple(out http.ResponseWriter, r *http.Request) {
	files := [][2]string{{"fromworld.py", "word = 'from the world'\n"},
		{"fromworld-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: fromworld\nVersion: 1.0\n"},
		{"fromworld-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: world\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}}
	record := "fromworld-1.0.dist-info/RECORD,,\n"
	for _, f := range files {
		sum := sha256.Sum256([]byte(f[1]))
		record = fmt.Sprintf("%s,sha256=%s,%d\n", f[0], base64.RawURLEncoding.EncodeToString(sum[:]), len(f[1])) + record
	}
	switch b := zipped("", append(files, [2]string{"fromworld-1.0.dist-info/RECORD", record})); r.URL.Path {
	case "/simple/fromworld/":
		out.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(out, `<!DOCTYPE html><html><body><a href="%s#sha256=%x">%s</a></body></html>`, wheel, sha256.Sum256(b), wheel)
	case "/simple/fromworld/" + wheel:
		out.Write(b)
	default:
		http.NotFound(out, r)
	}
}

func zipped(prefix string, files [][2]string) []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	var err error
	for _, f := range files {
		out, e := z.Create(prefix + f[0])
		if e == nil {
			_, e = io.WriteString(out, f[1])
		}
		err = errors.Join(err, e)
	}
	if err = errors.Join(err, z.Close()); err != nil {
		panic("world: internal error: " + err.Error()) // memory doesn't fail
	}
	return b.Bytes()
}
