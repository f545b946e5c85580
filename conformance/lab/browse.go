package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
)

// browse opens an address as a browser with a cookie does and prints the status, the page's heading
// and the cookie that it has then. At the console's door it enters.
func browse(address, cookie string) {
	status, head, cookie, err := visit(address, cookie)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("%d %s\n%s\n", status, head, cookie)
	os.Exit(0)
}

func visit(address, cookie string) (status int, head, now string, err error) {
	at, err := url.Parse(address)
	if err != nil {
		return 0, "", "", err
	}
	c := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	ask := func(method, to, form string) (*http.Response, string, error) {
		q, err := http.NewRequest(method, at.ResolveReference(&url.URL{Path: to}).String(), strings.NewReader(form))
		if err != nil {
			return nil, "", err
		}
		if form == "" {
			q.URL.RawQuery = at.RawQuery
		} else {
			q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		if cookie != "" {
			q.Header.Set("Cookie", cookie)
		}
		r, err := c.Do(q)
		if err != nil {
			return nil, "", err
		}
		defer r.Body.Close()
		page, err := io.ReadAll(r.Body)
		for _, k := range r.Cookies() {
			if k.MaxAge >= 0 {
				cookie = k.Name + "=" + k.Value
			}
		}
		return r, string(page), err
	}
	r, page, err := ask("GET", at.Path, "")
	if err == nil && r.StatusCode == 200 && at.Path == "/enter" {
		if r, _, err = ask("POST", at.Path, at.RawQuery); err == nil {
			at.RawQuery = ""
			r, page, err = ask("GET", r.Header.Get("Location"), "")
		}
	}
	if err != nil {
		return 0, "", "", err
	}
	_, head, _ = strings.Cut(page, "<h1>")
	head, _, _ = strings.Cut(head, "</h1>")
	return r.StatusCode, head, cookie, nil
}
