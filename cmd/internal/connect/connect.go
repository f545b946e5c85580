// Package connect finds palyrad for the programs that are its clients: by the flags
// --socket, --url, --token-file and --device, the environment and the usual places.
//
//	t, err := connect.Find(inv, os.Getenv)
//	h, err := connect.Dial(t)
//
// Nothing is connected before the first request. A socket that was found and not named must be
// listened on by a process of this user or of root, else it gets no request and no token. A target
// with a device is for cmd/internal/paired, which has the certificates.
package connect

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/hub"
	"palyra/hub/place"
	"palyra/internal/fault"
	"palyra/transport/client"
)

// Target is the address of the daemon. Either Socket or URL is set, or Device.
type Target struct {
	Socket string
	Own    bool // Socket must be this user's or root's palyrad's
	URL    string
	Token  string // never printed
	Device string // the folder of a paired device; URL may be empty then
}

// Dial makes the client.
func Dial(t Target) (hub.Hub, error) {
	c, err := client.New(client.Config{Socket: t.Socket, Own: t.Own, URL: t.URL, Token: t.Token})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Find returns the address that a command line names, or the default.
func Find(inv *command.Invocation, getenv func(string) string) (t Target, err error) {
	t = Target{Socket: command.Value(inv, "socket", ""), URL: command.Value(inv, "url", "")}
	file := command.Value(inv, "token-file", "")
	t.Device = command.Value(inv, "device", "")
	switch {
	case t.Device != "" && (t.Socket != "" || file != ""):
		return Target{}, fault.New(fault.Usage, "bad_command", "find palyrad", errors.New("--device excludes --socket and --token-file")).
			WithHint("its certificate is the credential; leave the others out")
	case t.Device != "":
	case t.Socket != "" && t.URL != "":
		return Target{}, fault.New(fault.Usage, "bad_command", "find palyrad", errors.New("--socket and --url exclude each other")).
			WithHint("leave one of them out")
	case t.URL != "" && file == "":
		return Target{}, front.Required(inv, "token-file")
	case t.URL == "" && t.Socket == "":
		t.Socket = place.ClientSocket(getenv)
		t.Own = getenv("PALYRA_SOCKET") == "" && t.Socket != place.SystemSocket
	}
	if file != "" {
		if t.Token, err = readToken(file); err != nil {
			return Target{}, err
		}
	}
	return t, nil
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
