package hello

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"testing"

	"palyra/call/egress"
)

// client returns the first record of a client, as crypto/tls writes it.
func client(t testing.TB, c *tls.Config) []byte {
	t.Helper()
	a, b := net.Pipe()
	done := make(chan []byte, 1)
	go func() {
		defer b.Close()
		head := make([]byte, 5)
		if _, err := io.ReadFull(b, head); err != nil {
			done <- nil
			return
		}
		body := make([]byte, binary.BigEndian.Uint16(head[3:]))
		_, _ = io.ReadFull(b, body)
		done <- append(head, body...)
	}()
	_ = tls.Client(a, c).Handshake() // the other side hangs up
	a.Close()
	return <-done
}

// server returns a ServerHello as its record, made by hand: crypto/tls wants a certificate before.
func server(legacy uint16, extensions ...byte) []byte {
	m := binary.BigEndian.AppendUint16(nil, legacy)
	m = append(m, make([]byte, 32)...)
	m = append(m, 0, 0x13, 1, 0)
	if extensions != nil {
		m = append(binary.BigEndian.AppendUint16(m, uint16(len(extensions))), extensions...)
	}
	m = append([]byte{2, 0, 0, byte(len(m))}, m...)
	return append([]byte{22, 3, 3, 0, byte(len(m))}, m...)
}

func TestClient(t *testing.T) {
	for _, c := range []struct {
		config *tls.Config
		want   Client
	}{
		{&tls.Config{ServerName: "Packages.example"}, Client{"packages.example", tls.VersionTLS13}},
		{&tls.Config{ServerName: "packages.example", MaxVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}, Client{"packages.example", tls.VersionTLS12}},
		{&tls.Config{ServerName: "packages.example", MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS10}, Client{"packages.example", tls.VersionTLS10}},
		{&tls.Config{ServerName: "192.0.2.7"}, Client{"", tls.VersionTLS13}}, // an address is never sent
	} {
		b := client(t, c.config)
		if got, err := ParseClient(append(bytes.Clone(b), "what follows"...)); err != nil || got != c.want {
			t.Errorf("ParseClient = %+v, %v, want %+v", got, err, c.want)
		}
		for i := range b {
			if got, err := ParseClient(b[:i]); err != ErrShort || got != (Client{}) {
				t.Fatalf("the first %d of %d bytes: %+v, %v", i, len(b), got, err)
			}
		}
		if got, err := ParseClient(records(b, 7)); err != nil || got != c.want {
			t.Errorf("in records of 7 bytes: %+v, %v, want %+v", got, err, c.want)
		}
	}
}

// records cuts the message of one record into records of n bytes.
func records(b []byte, n int) (out []byte) {
	for m := b[5:]; len(m) > 0; m = m[min(n, len(m)):] {
		out = append(out, 22, 3, 1, 0, byte(min(n, len(m))))
		out = append(out, m[:min(n, len(m))]...)
	}
	return out
}

func TestServer(t *testing.T) {
	for _, c := range []struct {
		b    []byte
		want uint16
	}{
		{server(0x0303), tls.VersionTLS12},
		{server(0x0302), tls.VersionTLS11},
		{server(0x0303, 0, 43, 0, 2, 3, 4), tls.VersionTLS13},
		{server(0x0303, 0xff, 1, 0, 1, 0), tls.VersionTLS12},
	} {
		if got, err := ParseServer(append(bytes.Clone(c.b), 20, 3, 3, 0, 1, 1)); err != nil || got.Version != c.want {
			t.Errorf("ParseServer(%x) = %+v, %v, want %x", c.b, got, err, c.want)
		}
		for i := range c.b {
			if got, err := ParseServer(c.b[:i]); err != ErrShort {
				t.Fatalf("the first %d bytes: %+v, %v", i, got, err)
			}
		}
	}
}

func TestNotTLS(t *testing.T) {
	hello := client(t, &tls.Config{ServerName: "packages.example"})
	with := func(at int, b byte) []byte { c := bytes.Clone(hello); c[at] = b; return c }
	for what, b := range map[string][]byte{
		"SSH":                     []byte("SSH-2.0-x\r\n"),
		"HTTP":                    []byte("GET / HTTP/1.1\r\n"),
		"an alert":                {21, 3, 3, 0, 2, 1, 0},
		"SSL 2":                   {0x80, 46, 1, 3, 1},
		"an empty record":         {22, 3, 1, 0, 0},
		"a record of 16 KiB + 1":  {22, 3, 1, 0x40, 1},
		"another message":         with(5, 2),
		"a message of 16 MiB":     with(6, 0xff),
		"version 2":               with(9, 2),
		"a cut message":           append(with(8, hello[8]-9), 0),
		"a session that's longer": with(43, 255),
		"no end":                  append([]byte{22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xff}, make([]byte, MaxClient)...),
	} {
		if got, err := ParseClient(b); err != ErrNotTLS || got != (Client{}) {
			t.Errorf("%s: ParseClient = %+v, %v, want ErrNotTLS", what, got, err)
		}
	}
	for what, b := range map[string][]byte{
		"a version of the future": server(0x0303, 0, 43, 0, 2, 3, 5),
		"no version in it":        server(0x0303, 0, 43, 0, 1, 3),
		"the same twice":          server(0x0303, 0, 43, 0, 2, 3, 4, 0, 43, 0, 2, 3, 3),
		"a cut extension":         server(0x0303, 0, 43, 0, 9, 3, 4),
		"a client":                hello,
	} {
		if got, err := ParseServer(b); err != ErrNotTLS {
			t.Errorf("%s: ParseServer = %+v, %v, want ErrNotTLS", what, got, err)
		}
	}
}

// TestNames: a server name that is none stays out of the evidence.
func TestNames(t *testing.T) {
	hello := client(t, &tls.Config{ServerName: "packages.example"})
	at := bytes.Index(hello, []byte("packages.example"))
	for _, c := range []string{"packages.\x00xample", "packages@example", "packages..xample", "127.000.000.0001"} {
		b := bytes.Clone(hello)
		copy(b[at:], c)
		if got, err := ParseClient(b); err != nil || got.ServerName != "" || got.Version != tls.VersionTLS13 {
			t.Errorf("%q: %+v, %v", c, got, err)
		}
	}
}

func TestVersionName(t *testing.T) {
	for v := uint16(0x0301); v <= 0x0305; v++ {
		if got, want := VersionName(v), tls.VersionName(v); got != want {
			t.Errorf("VersionName(%#x) = %q, want %q", v, got, want)
		}
	}
}

func FuzzHello(f *testing.F) {
	f.Add(client(f, &tls.Config{ServerName: "packages.example"}))
	f.Add(records(client(f, &tls.Config{ServerName: "packages.example", MaxVersion: tls.VersionTLS12}), 100))
	f.Add(server(0x0303, 0, 43, 0, 2, 3, 4))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := ParseClient(b)
		switch {
		case err == nil && !known(c.Version), err != nil && c != (Client{}), err == ErrShort && len(b) >= MaxClient:
			t.Errorf("ParseClient(%x) = %+v, %v", b, c, err)
		case err == nil && c.ServerName != "":
			if n, err := egress.Name(c.ServerName); err != nil || n != c.ServerName {
				t.Errorf("ParseClient(%x): name %q", b, c.ServerName)
			}
		}
		s, serr := ParseServer(b)
		if serr == nil && !known(s.Version) || err == nil && serr == nil || serr == ErrShort && len(b) >= MaxServer {
			t.Errorf("ParseServer(%x) = %+v, %v", b, s, serr)
		}
		// More bytes change nothing that is known.
		more := append(bytes.Clone(b), b...)
		if again, e := ParseClient(more); err != ErrShort && (again != c || e != err) {
			t.Errorf("ParseClient(%x) = %+v, %v, with more bytes %+v, %v", b, c, err, again, e)
		}
	})
}
