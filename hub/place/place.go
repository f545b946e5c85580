// Package place says where palyrad keeps its state and listens without a configuration, and
// where a client of the same user finds it. The configuration takes its defaults from here,
// and palyra-ctl needs no more of it.
//
// It trusts the environment as its caller does. FindSocket takes only sockets of
// this user or of root.
package place

import (
	"path/filepath"
	"strings"
)

// SystemSocket is palyrad's socket under the unit in deploy/.
const SystemSocket = "/run/palyra/palyrad.sock"

// FindSocket returns where a client in this environment finds palyrad. It looks at the
// places where a palyrad without configuration would listen, since another shell may have
// started it, and returns the first that has a socket of this user; else SystemSocket.
func FindSocket(getenv func(string) string) string {
	for _, s := range Sockets(getenv, StateDir(getenv)) {
		if ownSocket(s) {
			return s
		}
	}
	return SystemSocket
}

// ClientSocket is a client's default: PALYRA_SOCKET, else what FindSocket finds.
func ClientSocket(getenv func(string) string) string {
	if s := getenv("PALYRA_SOCKET"); s != "" {
		return s
	}
	return FindSocket(getenv)
}

// OwnSocket returns the socket of this very user's palyrad, "" if there is none: that of
// PALYRA_SOCKET, else the first of the places where a palyrad without configuration listens.
// Whether palyrad answers there isn't looked at.
func OwnSocket(getenv func(string) string) string {
	at := []string{getenv("PALYRA_SOCKET")}
	if at[0] == "" {
		at = Sockets(getenv, StateDir(getenv))
	}
	for _, s := range at {
		if mine(s) {
			return s
		}
	}
	return ""
}

// StateDir returns where palyrad keeps its state without configuration, "" if the
// environment does not say.
func StateDir(getenv func(string) string) string {
	if dir := directory(getenv, "STATE_DIRECTORY"); dir != "" {
		return dir
	}
	if dir := directory(getenv, "XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "palyra")
	}
	if dir := directory(getenv, "HOME"); dir != "" {
		return filepath.Join(dir, ".local", "state", "palyra")
	}
	return ""
}

// Sockets lists where palyrad listens without configuration; it takes the first.
func Sockets(getenv func(string) string, state string) (out []string) {
	if dir := directory(getenv, "RUNTIME_DIRECTORY"); dir != "" {
		out = append(out, filepath.Join(dir, socketFile))
	}
	if dir := directory(getenv, "XDG_RUNTIME_DIR"); dir != "" {
		out = append(out, filepath.Join(dir, "palyra", socketFile))
	}
	if state != "" {
		out = append(out, filepath.Join(state, socketFile))
	}
	return out
}

const socketFile = "palyrad.sock"

// directory returns the absolute path that a variable holds, "" if it holds none.
// systemd lists several directories with colons between them; the first counts.
func directory(getenv func(string) string, name string) string {
	dir, _, _ := strings.Cut(getenv(name), ":")
	if !filepath.IsAbs(dir) {
		return ""
	}
	return filepath.Clean(dir)
}
