package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"

	"palyra/cmd/internal/command"
	"palyra/hub"
	"palyra/hub/place"
	"palyra/internal/durable"
)

// reach examines the way to palyrad: its socket, and whether this user may use it. It
// connects to nothing.
func (a *app) reach(inv *command.Invocation) []hub.Finding {
	if inv.Has("url") || inv.Has("device") {
		return []hub.Finding{}
	}
	path := command.Value(inv, "socket", "")
	if path == "" {
		path = place.ClientSocket(a.getenv)
	}
	socket := hub.Finding{Name: "socket", Answer: "yes", Detail: path, How: "stat", Needed: []string{}}
	fi, err := os.Stat(path)
	switch {
	case err != nil:
		if !errors.Is(err, fs.ErrNotExist) {
			socket.Answer, socket.Cost, socket.Fix = "no", "palyrad cannot be asked", "namei -l "+path
		} else {
			socket.Answer, socket.Cost, socket.Fix = "no", "palyrad cannot be asked", "start palyrad: systemctl start palyrad; or name its socket: --socket PATH, PALYRA_SOCKET"
		}
		socket.Detail = err.Error()
		return []hub.Finding{socket}
	case fi.Mode().Type() != fs.ModeSocket:
		socket.Answer, socket.Cost, socket.Fix = "no", "palyrad cannot be asked", "name palyrad's socket: --socket PATH"
		socket.Detail = path + " is no socket"
		return []hub.Finding{socket}
	}
	return append([]hub.Finding{socket}, membership(path, fi)...)
}

// membership says whether this process may connect to the socket, and by which right.
func membership(path string, fi os.FileInfo) []hub.Finding {
	uid, gid, ok := ownerOf(fi)
	if !ok {
		return nil
	}
	f := hub.Finding{Name: "group", Answer: "yes", How: "mode of the socket and groups of this process", Needed: []string{}}
	group := fmt.Sprint(gid)
	if g, err := user.LookupGroupId(group); err == nil {
		group = g.Name
	}
	own, _ := os.Getgroups()
	mode := fi.Mode().Perm()
	switch {
	case os.Geteuid() == 0:
		f.Detail = "root may connect to any socket"
	case os.Geteuid() == uid && mode&0o200 != 0:
		f.Detail = "this user owns the socket"
	case (os.Getegid() == gid || slices.Contains(own, gid)) && mode&0o020 != 0:
		f.Detail = "this process is in group " + group
	case mode&0o002 != 0:
		f.Detail = "every user may connect"
	default:
		f.Answer, f.Detail = "no", fmt.Sprintf("this process is not in group %s (mode %04o of %s)", group, mode, path)
		f.Cost, f.Fix = "palyrad cannot be asked", "usermod -aG "+group+" USER as root, then log in again"
	}
	return []hub.Finding{f}
}

// plainKeys repeats who left the signing keys of a state directory plain. Without palyrad, palyra
// exec uses them. It returns no finding for keys that are sealed.
func plainKeys(state string) []hub.Finding {
	const limit = 4 << 10
	path := filepath.Join(state, "keys", "plain.json")
	b, err := durable.ReadPrivate(path, limit)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var who struct {
		Version       int
		By, Time, How string
	}
	f := hub.Finding{Name: "keys", Answer: "yes", How: "keys/plain.json of the state directory", Needed: []string{}}
	if err == nil {
		err = json.Unmarshal(b, &who)
	}
	switch {
	case err != nil:
		f.Answer, f.Detail = "unknown", err.Error()
	case who.How == "asked":
		f.Detail = fmt.Sprintf("plain in %s; %s asked for that on %s", state, who.By, who.Time)
	default:
		f.Answer, f.Detail = "no", fmt.Sprintf("plain in %s; since the first use by %s on %s", state, who.By, who.Time)
		f.Cost = "a reader of the disk, or of a copy, can sign as this user's palyra"
		f.Fix = "palyra keys seal; or palyra keys unseal, which says that they may lie so"
	}
	return []hub.Finding{f}
}
