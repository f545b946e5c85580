package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"palyra/cmd/internal/command"
	"palyra/hub"
	"palyra/hub/place"
	"palyra/internal/fault"
	"palyra/transport/client"
)

// target is the address of the daemon. Either Socket or URL is set.
type target struct {
	Socket string
	URL    string
	Token  string // for URL; never printed
}

// dial makes the client. Nothing is connected before the first request.
func dial(t target) (hub.Hub, error) {
	c, err := client.New(client.Config{Socket: t.Socket, URL: t.URL, Token: t.Token})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// connect finds the daemon by the flags, the environment and the usual places.
func (a *app) connect(inv *command.Invocation) (hub.Hub, error) {
	t := target{Socket: command.Value(inv, "socket", ""), URL: command.Value(inv, "url", "")}
	file := command.Value(inv, "token-file", "")
	switch {
	case t.Socket != "" && t.URL != "":
		return nil, fault.New(fault.Usage, "bad_command", "find palyrad", errors.New("--socket and --url exclude each other")).
			WithHint("leave one of them out")
	case t.URL != "":
		if file == "" {
			return nil, need(inv, "token-file")
		}
		token, err := readToken(file)
		if err != nil {
			return nil, err
		}
		t.Token = token
		return a.dial(t)
	case file != "":
		return nil, fault.New(fault.Usage, "bad_command", "find palyrad", errors.New("--token-file is for --url; the socket knows who is at its other end")).
			WithHint("add --url, or leave --token-file out")
	}
	if t.Socket == "" {
		t.Socket = a.socket()
	}
	return a.dial(t)
}

// socket is the default: PALYRA_SOCKET, else where palyrad is found.
func (a *app) socket() string {
	if s := a.getenv("PALYRA_SOCKET"); s != "" {
		return s
	}
	return place.FindSocket(a.getenv)
}

// readToken reads a token from a file that no other user may read.
func readToken(path string) (string, error) {
	op := fmt.Sprintf("read token file %q", path)
	f, err := os.Open(path)
	if err != nil {
		return "", fault.New(fault.Usage, "bad_file", op, err)
	}
	defer f.Close()
	fi, err := f.Stat()
	switch {
	case err != nil:
		return "", fault.New(fault.Usage, "bad_file", op, err)
	case !fi.Mode().IsRegular():
		return "", fault.New(fault.Usage, "bad_file", op, errors.New("not a regular file"))
	case fi.Mode().Perm()&0o077 != 0 && os.PathSeparator == '/':
		return "", fault.New(fault.Usage, "bad_file", op, fmt.Errorf("others may read it (mode %04o)", fi.Mode().Perm())).
			WithHint("chmod 600 " + path)
	}
	b, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return "", fault.New(fault.Usage, "bad_file", op, err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", fault.New(fault.Usage, "bad_file", op, errors.New("it does not hold one token"))
	}
	return token, nil
}
