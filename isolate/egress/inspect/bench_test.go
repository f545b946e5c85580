package inspect

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"
)

// BenchmarkBeside measures 64 MiB of an answer, or of a request, through a Guard beside a direct
// connection, in turns, as ratios of medians. With a secret answers are cleaned and requests watched.
//
//	go test ./isolate/egress/inspect -run xxx -bench Beside -benchtime 15x
func BenchmarkBeside(b *testing.B) {
	const bulk = 64 << 20
	handler := func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			n, _ := io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, n)
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(bulk))
		p := make([]byte, 256<<10)
		for i := range p {
			p[i] = byte(i * 7 >> 2)
		}
		for n := 0; n < bulk; n += len(p) {
			if _, err := w.Write(p); err != nil {
				return
			}
		}
	}
	for _, c := range []struct {
		name            string
		h1host, h2      bool
		secret, request bool
	}{
		{"answer/http1", false, false, false, false},
		{"answer/http1/host1", true, false, false, false},
		{"answer/http2", false, true, false, false},
		{"answer/http1/secret", false, false, true, false},
		{"answer/http2/secret", false, true, true, false},
		{"request/http1", false, false, false, true},
		{"request/http2", false, true, false, true},
		{"request/http2/secret", false, true, true, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := setup{inspect: []string{"a.example:443"}, handler: handler, h1: c.h1host}
			if c.secret {
				s.uses, s.value = []string{"T=vault://global/k header:authorization a.example:443"}, "the-value-of-it"
			}
			r := newRig(b, s)
			direct := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: c.h2, DisableCompression: true}}
			defer direct.CloseIdleConnections()
			through := r.client(c.h2)
			room := make([]byte, 256<<10)
			once := func(client *http.Client, at string) time.Duration {
				began := time.Now()
				var res *http.Response
				var err error
				if c.request {
					res, err = client.Post(at+"/", "text/plain", io.LimitReader(zeros{}, bulk))
				} else {
					res, err = client.Get(at + "/")
				}
				if err != nil {
					b.Fatal(err)
				}
				n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, res.Body, room)
				if err != nil || !c.request && n != bulk {
					b.Fatal(n, err)
				}
				res.Body.Close()
				return time.Since(began)
			}
			var d, t []time.Duration
			for b.Loop() {
				d = append(d, once(direct, r.host.URL))
				t = append(t, once(through, "https://a.example"))
			}
			slices.Sort(d)
			slices.Sort(t)
			md, mt := d[len(d)/2], t[len(t)/2]
			b.ReportMetric(float64(md.Milliseconds()), "direct-ms")
			b.ReportMetric(float64(mt.Milliseconds()), "through-ms")
			b.ReportMetric(float64(mt)/float64(md), "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }
