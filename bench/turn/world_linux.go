package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"palyra/isolate/egress/dns"
)

// host is the model's name, which leads to 127.0.0.1.
const host = "model.example"

// world is the model, the way to it, and who knows its name.
type world struct {
	rtt, every   time.Duration
	tokens, size int

	roots     *x509.CertPool
	rootsFile string
	names     *net.UDPConn
	near, far net.Listener // far is nil without rtt
	server    *http.Server
}

// begin starts all of it. The root's certificate is written to dir.
func (w *world) begin(dir string) (err error) {
	cert, root, err := certificate()
	if err != nil {
		return err
	}
	w.roots = x509.NewCertPool()
	w.roots.AddCert(root)
	w.rootsFile = filepath.Join(dir, "roots.pem")
	if err := os.WriteFile(w.rootsFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Raw}), 0o644); err != nil {
		return err
	}
	if w.names, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}); err != nil {
		return err
	}
	go w.resolve()
	if w.near, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
		return err
	}
	w.server = &http.Server{Handler: http.HandlerFunc(w.answer), TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}, ErrorLog: log.New(io.Discard, "", 0)}
	go w.server.ServeTLS(w.near, "", "")
	if w.rtt == 0 {
		return nil
	}
	if w.far, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
		return err
	}
	go w.delay()
	return nil
}

func (w *world) end() {
	w.names.Close()
	w.server.Close()
	if w.far != nil {
		w.far.Close()
	}
}

// certificate returns the model's, and the root that signed it.
func certificate() (leaf tls.Certificate, root *x509.Certificate, err error) {
	rootKey, err1 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	key, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err := errors.Join(err1, err2); err != nil {
		return leaf, nil, err
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, rootKey.Public(), rootKey)
	if err != nil {
		return leaf, nil, err
	}
	if root, err = x509.ParseCertificate(der); err != nil {
		return leaf, nil, err
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, DNSNames: []string{host}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if der, err = x509.CreateCertificate(rand.Reader, of, root, key.Public(), rootKey); err != nil {
		return leaf, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, root, nil
}

// resolve answers questions for names until the socket is closed.
func (w *world) resolve() {
	b := make([]byte, dns.MaxQuery)
	for {
		n, from, err := w.names.ReadFromUDP(b)
		if err != nil {
			return
		}
		q, err := dns.Parse(b[:n])
		switch {
		case err != nil:
		case q.Type != dns.A:
			w.names.WriteToUDP(q.Empty(), from)
		default:
			w.names.WriteToUDP(q.Addresses([]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}, time.Minute), from)
		}
	}
}

// answer is the model, which speaks Chat Completions.
func (w *world) answer(out http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil || r.Header.Get("Authorization") != "Bearer "+secret {
		http.Error(out, "no", http.StatusUnauthorized)
		return
	}
	out.Header().Set("Content-Type", "text/event-stream")
	c := http.NewResponseController(out)
	next := time.Now()
	for range w.tokens {
		time.Sleep(time.Until(next))
		next = next.Add(w.every)
		fmt.Fprintf(out, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%d \"}}]}\n\n", time.Now().UnixNano())
		c.Flush()
	}
	io.WriteString(out, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
}

// piece is bytes that are handed on at a time.
type piece struct {
	at time.Time
	b  []byte
}

// delay leads connections to the model, each byte half of rtt later.
func (w *world) delay() {
	for {
		c, err := w.far.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			to, err := net.Dial("tcp4", w.near.Addr().String())
			if err != nil {
				return
			}
			defer to.Close()
			done := make(chan struct{}, 2)
			pass := func(dst, src net.Conn, later time.Duration) {
				q := make(chan piece, 1024)
				go func() {
					defer close(q)
					for {
						b := make([]byte, 64<<10)
						n, err := src.Read(b)
						if n > 0 {
							q <- piece{time.Now().Add(later), b[:n]}
							later = w.rtt / 2
						}
						if err != nil {
							return
						}
					}
				}()
				for p := range q {
					time.Sleep(time.Until(p.at))
					if _, err := dst.Write(p.b); err != nil {
						break
					}
				}
				done <- struct{}{}
			}
			go pass(to, c, w.rtt/2+w.rtt)
			go pass(c, to, w.rtt/2)
			<-done // either end is the end of both, as nobody here half-closes
		}()
	}
}

// bare are the paths of clients of one's own.
func (w *world) bare() (out []path) {
	client := func(at net.Listener, keep bool) func(context.Context) (turn, error) {
		c := &http.Client{Transport: &http.Transport{DisableKeepAlives: !keep, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: w.roots},
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp4", at.Addr().String())
			}}}
		return func(ctx context.Context) (turn, error) { return w.direct(ctx, c) }
	}
	out = append(out, path{"bare, kept connection", client(w.near, true)}, path{"bare, new connection", client(w.near, false)})
	if w.far != nil {
		out = append(out, path{"bare, kept connection, far", client(w.far, true)}, path{"bare, new connection, far", client(w.far, false)})
	}
	return out
}

// question is what is asked.
func (w *world) question() string { return strings.Repeat("why? ", w.size/5) }

// direct asks the model with a client.
func (w *world) direct(ctx context.Context, c *http.Client) (t turn, err error) {
	start := time.Now()
	body, err := json.Marshal(map[string]any{"model": "m", "stream": true, "messages": []map[string]string{{"role": "user", "content": w.question()}}})
	if err != nil {
		return t, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+host+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return t, err
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	res, err := c.Do(r)
	if err != nil {
		return t, err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: {")
		if !ok {
			continue
		}
		var ev struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		if err := json.Unmarshal([]byte("{"+data), &ev); err != nil {
			return t, err
		}
		if err := t.heard(start, ev.Choices[0].Delta.Content); err != nil {
			return t, err
		}
	}
	t.whole = time.Since(start)
	if err := lines.Err(); err != nil {
		return t, err
	}
	return t, t.check(w.tokens)
}

// heard notes a piece of text, which is the time when it was written.
func (t *turn) heard(start time.Time, text string) error {
	if text == "" {
		return nil
	}
	now := time.Now()
	if t.first == 0 {
		t.first = now.Sub(start)
	}
	for one := range strings.FieldsSeq(text) {
		at, err := strconv.ParseInt(one, 10, 64)
		if err != nil {
			return err
		}
		t.late = append(t.late, now.Sub(time.Unix(0, at)))
	}
	return nil
}

// check says whether all of an answer came.
func (t *turn) check(tokens int) error {
	if len(t.late) != tokens {
		return fmt.Errorf("%d pieces of text came of %d", len(t.late), tokens)
	}
	return nil
}
