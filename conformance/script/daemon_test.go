//go:build linux

package script

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// peerAddress is where palyrad says that it serves devices.
var peerAddress = regexp.MustCompile(`"peer":"([0-9.:]+)"`)

// daemon starts palyrad until the script ends, with a policy directory and the workspace
// src, which is a folder of the script's, with further keys. Its socket is the script's
// $PALYRA_SOCKET; with peer.listen, $PEER is where it serves devices. Its state directory is
// state, or $STATE with the word shared.
func daemon(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: daemon POLICYDIR [shared] [KEY=VALUE...]")
	}
	state, keys := ts.MkAbs("state"), args[1:]
	if len(keys) > 0 && keys[0] == "shared" {
		state, keys = ts.Getenv("STATE"), keys[1:]
	}
	ts.Setenv("PALYRA_SOCKET", ts.MkAbs("p.sock"))
	ts.Check(os.MkdirAll(ts.MkAbs("src"), 0o755))
	config := ts.MkAbs("palyrad.toml")
	ts.Check(os.WriteFile(config, fmt.Appendf(nil, "state.dir = %q\nlisten.socket = %q\nlisten.http = \"off\"\npolicy.dir = %q\n[workspaces.src]\npath = %q\nread_only = false\n%s\n",
		state, ts.MkAbs("p.sock"), ts.MkAbs(args[0]), ts.MkAbs("src"), strings.Join(keys, "\n")), 0o600))
	cmd := exec.Command(filepath.Join(tools, "palyrad"), "--config", config)
	cmd.Env = []string{"PATH=" + ts.Getenv("PATH"), "HOME=" + ts.Getenv("HOME")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	log, err := cmd.StderrPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	var text bytes.Buffer
	lines, serving := bufio.NewScanner(log), false
	for !serving && lines.Scan() {
		text.WriteString(lines.Text() + "\n")
		serving = strings.Contains(lines.Text(), `"status":"serving"`)
		if m := peerAddress.FindStringSubmatch(lines.Text()); m != nil {
			ts.Setenv("PEER", m[1])
		}
	}
	rest := make(chan struct{})
	go func() {
		defer close(rest)
		io.Copy(&text, log)
	}()
	ts.Defer(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		<-rest
		if err := cmd.Wait(); err != nil {
			ts.Logf("palyrad: %v\n%s", err, &text)
		}
	})
	if !serving {
		<-rest
		ts.Fatalf("palyrad does not serve: %v\n%s", lines.Err(), &text)
	}
}

// talk runs a program that answers lines with lines, and holds its side of a dialog with it.
// The lines of the dialog:
//
//	> TEXT     write it
//	< REGEXP   read a line, which must match
//	<+ REGEXP  the same, behind further reports of progress, which come with the output
//	! REGEXP   the line that was read last must not match
//	$ COMMAND  have a shell run it, with success
//	# TEXT     a comment
//
// Groups with a name are known to later lines as ${name}. After the last one the program's
// input is closed.
func talk(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: talk FILE N CMD ARG...")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := command(ts, args[2:])
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stderr = ts.Stderr()
	in, err := cmd.StdinPipe()
	ts.Check(err)
	out, err := cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	context.AfterFunc(ctx, func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	answers, last, known := bufio.NewReader(out), "", map[string]string{}
	failed := func(n int, format string, a ...any) {
		cancel()
		cmd.Wait()
		ts.Fatalf("%s:%d: %s", args[0], n, fmt.Sprintf(format, a...))
	}
	for i, line := range strings.Split(ts.ReadFile(args[0]), "\n") {
		n := i + 1
		line = os.Expand(line, func(name string) string {
			if v, ok := known[name]; ok {
				return v
			}
			return "${" + name + "}" // the shell's
		})
		verb, text, _ := strings.Cut(line, " ")
		switch verb {
		case "", "#":
		case ">":
			if _, err := io.WriteString(in, text+"\n"); err != nil {
				failed(n, "write: %v", err)
			}
		case "<", "<+", "!":
			re, err := regexp.Compile(text)
			if err != nil {
				failed(n, "%v", err)
			}
			for read := verb != "!"; read; read = verb == "<+" && !re.MatchString(last) && strings.Contains(last, `"method":"notifications/progress"`) {
				if last, err = answers.ReadString('\n'); err != nil {
					failed(n, "read: %v", err)
				}
			}
			m := re.FindStringSubmatch(last)
			if (m != nil) == (verb == "!") {
				failed(n, "read %s", last)
			}
			for j, name := range re.SubexpNames() {
				if name != "" && m != nil {
					known[name] = m[j]
				}
			}
		case "$":
			sh := command(ts, []string{"/bin/sh", "-c", text})
			sh.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			if b, err := sh.CombinedOutput(); err != nil {
				failed(n, "%v\n%s", err, b)
			}
		default:
			failed(n, "no such verb: %q", verb)
		}
	}
	in.Close()
	rest, err := io.ReadAll(answers)
	ts.Check(err)
	ts.Stdout().Write(rest)
	if got := code(cmd.Wait()); fmt.Sprint(got) != args[1] {
		ts.Fatalf("status %d, want %s", got, args[1])
	}
}
