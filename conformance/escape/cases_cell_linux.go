package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// operandExchange is the name of 104/exchange-*.
const operandExchange = "operand-exchange"

// cellCases are 104/exchange-*, the approved bytes, and 100, the host's things in the
// template.
func cellCases() []attackCase {
	var out []attackCase
	for _, v := range []struct{ variant, attack, a, b string }{
		{"exchange-folder", "exchange the folder of an approved file, back and forth, while the program reads it", "sub", "evil"},
		{"exchange-above", "… a folder above it", "top", "other"},
		{"exchange-file", "… the file itself", "top/sub/in", "top/evil/in"},
	} {
		out = append(out, attackCase{number: 104, variant: v.variant, name: operandExchange,
			attack:  v.attack,
			stopped: at([]string{refused}, []string{"OPEN", "NONE", "SIGKILL", "ENOENT", refused}),
			note:    "having read other bytes, the call may not pass for executed",
			stage:   func(s *stage) (scene, error) { return exchangeScene(s, v.a, v.b) }})
	}
	for _, kind := range []string{"stream", "dgram"} {
		out = append(out, attackCase{number: 100, variant: kind, name: "usr-unix", attack: "reach a host process that listens below /usr, which cells show",
			stopped: both("ECONNREFUSED", "EPERM", "EACCES", "EAFNOSUPPORT", "ENOSYS", "SIGSYS"),
			stage:   func(s *stage) (scene, error) { return systemSocketScene(s, kind) }})
	}
	return out
}

// exchangeScene has the host exchange a and b in the workspace for as long as the program
// runs. Its status tells it apart from a call that did what was approved.
func exchangeScene(s *stage, a, b string) (scene, error) {
	ws, err := s.workspace()
	if err != nil {
		return scene{}, err
	}
	if a == "sub" {
		a, b = "top/sub", "top/evil"
	}
	for _, f := range []struct{ name, text string }{{"top/sub/in", "approved"}, {"top/evil/in", "evil " + s.nonce}, {"other/sub/in", "evil " + s.nonce}} {
		path := filepath.Join(ws, f.name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return scene{}, err
		}
		if err := s.write(path, f.text, 0o644); err != nil {
			return scene{}, err
		}
	}
	err = filepath.WalkDir(ws, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chown(path, s.user.uid, s.user.gid), s.give(path))
	})
	if err != nil {
		return scene{}, err
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		exchange := func() {
			_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(ws, a), unix.AT_FDCWD, filepath.Join(ws, b), unix.RENAME_EXCHANGE)
		}
		for {
			select {
			case <-stop:
				return
			case <-time.After(400 * time.Millisecond):
				// Let the call be approved and begin first.
			}
			exchange()
			time.Sleep(20 * time.Millisecond)
			exchange()
		}
	}()
	s.later(func() { close(stop); <-done })
	return scene{probe: "reread", args: []string{"file=top/sub/in", "token=" + s.nonce}, opt: options{workspace: ws, asked: true, timeout: 10 * time.Second},
		because: "seal",
		canary: func(o *outcome) (bool, string) {
			return o.exit == 0 && bytes.Contains(o.stdout.kept, []byte(`"OPEN"`)), "it read other bytes, and the call was executed"
		}}, nil
}

// systemSocketScene has the host listen in a folder of /usr/local, as software installed
// with that prefix does. Only root may.
func systemSocketScene(s *stage, kind string) (scene, error) {
	dir := filepath.Join("/usr/local", s.nonce)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return scene{}, err
	}
	s.later(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // past the umask
		return scene{}, err
	}
	return unixScene(s, kind, filepath.Join(dir, "sock"), "")
}
