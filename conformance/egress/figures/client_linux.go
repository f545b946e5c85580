package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// client does what it is told on standard input, and says how many nanoseconds that took. Its first
// word is a proxy or "".
func client(args []string) error {
	if len(args) == 2 && args[1] == "-probe" {
		c, err := net.Dial("tcp", args[0])
		if err == nil {
			c.Close()
		}
		return err
	}
	addrs, err := net.LookupHost(host)
	if err != nil {
		return err
	}
	if len(args) == 2 && args[0] == "-large" {
		n, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil {
			return err
		}
		c, err := dial("", addrs[0], bulk)
		if err != nil {
			return err
		}
		return get(c, n)
	}
	proxy := args[0]
	var held []net.Conn
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		f := strings.Fields(in.Text())
		if len(f) == 0 {
			continue
		}
		n := int64(0)
		if len(f) > 1 {
			if n, err = strconv.ParseInt(f[1], 10, 64); err != nil {
				return err
			}
		}
		began := time.Now()
		switch f[0] {
		case "hello":
		case "connect":
			var c net.Conn
			if c, err = exchange(proxy, addrs[0]); err == nil {
				c.Close()
			}
		case "bulk", "tls":
			var c net.Conn
			if c, err = open(f[0] == "tls", proxy, addrs[0]); err == nil {
				err = get(c, n)
			}
		case "hold":
			held, err = hold(int(n), func() (net.Conn, error) { return exchange(proxy, addrs[0]) })
		case "hold-tls":
			held, err = hold(int(n), func() (net.Conn, error) { return asked(proxy, addrs[0]) })
		case "drop":
			for _, c := range held {
				c.Close()
			}
			held = nil
		default:
			err = fmt.Errorf("no command %q", f[0])
		}
		if err != nil {
			fmt.Println(err)
			return err
		}
		fmt.Println(time.Since(began).Nanoseconds())
	}
	return in.Err()
}

// ping is what goes there. mitmproxy waits for three bytes before it passes any.
const ping = "hello\n"

// exchange connects and passes a word there and one back.
func exchange(proxy, addr string) (net.Conn, error) {
	c, err := dial(proxy, addr, quick)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := c.Write([]byte(ping)); err != nil {
		return nil, err
	}
	_, err = io.ReadFull(c, make([]byte, len("heard\n")))
	return c, err
}

// open connects to the world's HTTP or HTTPS.
func open(secure bool, proxy, addr string) (net.Conn, error) {
	if !secure {
		return dial(proxy, addr, bulk)
	}
	c, err := dial(proxy, addr, private)
	if err != nil {
		return nil, err
	}
	return tls.Client(c, &tls.Config{ServerName: host}), nil // roots: SSL_CERT_FILE
}

// asked is a connection over TLS on which a request was answered, and which stays.
func asked(proxy, addr string) (net.Conn, error) {
	c, err := open(true, proxy, addr)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := fmt.Fprintf(c, "GET /bytes/1 HTTP/1.1\r\nHost: %s\r\n\r\n", host); err != nil {
		return nil, err
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(io.Discard, res.Body)
	return c, err
}

// get reads n bytes of a response, to the end of the connection.
func get(c net.Conn, n int64) error {
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Minute))
	if _, err := fmt.Fprintf(c, "GET /bytes/%d HTTP/1.0\r\nHost: %s\r\n\r\n", n, host); err != nil {
		return err
	}
	b := make([]byte, 256<<10)
	body, head := int64(-1), []byte(nil)
	for {
		m, err := c.Read(b)
		if body >= 0 {
			body += int64(m)
		} else {
			head = append(head, b[:m]...)
			if i := bytes.Index(head, []byte("\r\n\r\n")); i >= 0 {
				body = int64(len(head) - i - 4)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if body != n {
		return fmt.Errorf("%d bytes of %d came", body, n)
	}
	return nil
}

// hold makes n connections at once, each of which has passed something.
func hold(n int, connect func() (net.Conn, error)) ([]net.Conn, error) {
	conns, errs := make([]net.Conn, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { conns[i], errs[i] = connect() })
	}
	wg.Wait()
	return conns, errors.Join(errs...)
}
