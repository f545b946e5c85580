package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tampered puts an attacker between the archive and apt who changes one byte: of the signed
// index, of a file that it names, and of a package. apt must refuse each; the first check
// is the control, in which nothing is changed.
func (l *lab) tampered() (*played, error) {
	const suite, arch, name = "bookworm", "amd64", "base-passwd"
	p := &played{Machine: "archive", Suite: suite, Arch: arch, Init: "none"}
	uri, err := mirror(filepath.Join(l.work, "tampered"))
	if err != nil {
		return p, err
	}
	between, err := listen(uri)
	if err != nil {
		return p, err
	}
	defer between.Close()
	began := time.Now()
	var got []result
	for _, c := range []struct{ check, path string }{{"whole", ""}, {"index", "/InRelease"}, {"packages", "/main/binary-"}, {"package", ".deb"}} {
		start := time.Now()
		between.change = c.path
		a := newArchive(filepath.Join(l.work, "tampered/between"), arch)
		a.opts = append(a.opts, "-o", "Acquire::Retries=0", "-o", "Acquire::http::Proxy::127.0.0.1=DIRECT")
		err := errors.Join(os.RemoveAll(a.dir), a.read(suite, between.uri))
		if err == nil {
			_, err = a.with(name)
		}
		if c.path == "" && away(err) != "" {
			return p, err
		}
		said := "ok"
		if err != nil {
			said = refusal(err)
		}
		if changed := between.changed > 0; changed != (c.path != "") {
			said = fmt.Sprintf("failed: %d answers changed", between.changed)
		}
		between.changed = 0
		got = append(got, result{"archive/" + c.check, said, fmt.Sprintf("%.1f s", time.Since(start).Seconds())})
	}
	p.Seconds = time.Since(began).Seconds()
	m := machine{name: p.Machine}
	want, err := l.judge(m, got, nil)
	p.count(got, want)
	return p, err
}

// refusal returns apt's reason.
func refusal(err error) string {
	switch text := err.Error(); {
	case strings.Contains(text, "Hash Sum mismatch"), strings.Contains(text, "unexpected size"):
		return "refused: digest"
	case strings.Contains(text, "signature"), strings.Contains(text, "BADSIG"):
		return "refused: signature"
	default:
		return "failed: " + text[:min(len(text), 400)]
	}
}

// meddler hands on what an archive serves, with one byte changed where the path
// ends with or holds change. Its fields are set between requests.
type meddler struct {
	net.Listener
	uri     string
	change  string
	changed int
}

func listen(uri string) (*meddler, error) {
	to, err := url.Parse(uri)
	if err != nil || to.Scheme != "http" && to.Scheme != "https" {
		return nil, fmt.Errorf("archive at %q: %w", uri, errors.Join(err, errors.New("not over HTTP")))
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	m := &meddler{Listener: ln, uri: "http://" + ln.Addr().String() + "/"}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Header.Del("Range") // all of it, to change its middle
			r.Out.Header.Del("If-Modified-Since")
		},
		ModifyResponse: func(r *http.Response) error {
			if m.change == "" || !strings.Contains(r.Request.URL.Path, m.change) || r.StatusCode != http.StatusOK {
				return nil
			}
			b, err := io.ReadAll(r.Body)
			if err != nil || len(b) == 0 {
				return err
			}
			r.Body.Close()
			b[len(b)/2] ^= 1
			m.changed++
			r.Body = io.NopCloser(bytes.NewReader(b))
			r.Header.Set("Content-Length", strconv.Itoa(len(b)))
			return nil
		},
	}
	go func() { _ = http.Serve(ln, proxy) }() // ends with the listener
	return m, nil
}
