package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// result is the result of one check: "ok", or the observation if that depends on the
// kernel, or "failed: " and the reason, which is never expected. On the console it is a
// line that begins with [mark].
type result struct {
	Check string `json:"check"`
	Got   string `json:"got"`
	Note  string `json:"note,omitempty"` // for people; not compared
}

const mark = "LAB "

// booted is a machine's line before its first check, unless systemd is its first process.
const booted = "booted"

// lastWords are typed at the console of a machine that will not be done in time:
// serial breaks ask the kernel for all its messages, for what its processors do and
// which tasks are blocked (Linux, admin-guide/sysrq). Should that not answer, the
// emulator's monitor has the registers. One at a time, the latest so long before the
// end.
var lastWords = []struct {
	before time.Duration
	keys   string
}{{10 * time.Second, "\x01b9"}, {9 * time.Second, "\x01bl"}, {7 * time.Second, "\x01bw"}, {2 * time.Second, "\x01cinfo registers -a\n"}}

// boot runs the machine and collects the results from its console. first is how
// long it took until there was one.
func (l *lab) boot(m machine, vmlinuz, initrd, disk string) (got []result, first time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), l.timeout)
	defer cancel()
	// All processors of a machine in one thread: with a thread each, qemu before 8.1
	// may translate code while another processor changes it, and run what is not there
	// any more. The kernel changes its code whenever a static key is turned, such as by
	// the first quota of processor time: 6.12 met a breakpoint that it had taken away.
	args := append(m.emulator(), "-accel", "tcg,thread=single", "-m", "1536", "-smp", "2", "-nographic", "-no-reboot", "-nic", "none",
		"-kernel", vmlinuz, "-initrd", initrd, "-drive", "if=virtio,format=raw,snapshot=on,file="+disk, "-append", m.cmdline(l.only))
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, 0, err
	}
	keys, err := cmd.StdinPipe()
	if err != nil {
		return nil, 0, err
	}
	defer keys.Close()
	cmd.Stderr = os.Stderr
	runtime.LockOSThread() // whose end is the machine's
	defer runtime.UnlockOSThread()
	dieWithUs(cmd)
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, 0, err
	}
	for _, w := range lastWords {
		// A machine that is gone says nothing.
		ask := time.AfterFunc(l.timeout-w.before, func() { _, _ = io.WriteString(keys, w.keys) })
		defer ask.Stop()
	}
	var console bytes.Buffer
	done := false
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), "\r")
		fmt.Fprintln(&console, line)
		if l.verbose {
			fmt.Println(line)
		}
		_, doc, ok := strings.Cut(line, mark) // the firmware may stand before it
		var r result
		if !ok || json.Unmarshal([]byte(doc), &r) != nil {
			continue
		}
		if done = done || r.Check == "done"; first == 0 {
			first = time.Since(start)
		}
		if r.Check != "done" && r.Check != booted {
			got = append(got, r)
		}
	}
	err = errors.Join(lines.Err(), cmd.Wait())
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("not done after %v", l.timeout)
	case err == nil && !done:
		err = errors.New("it ended early")
	}
	if err != nil && !l.verbose {
		fmt.Printf("%s\n", console.Bytes())
	}
	return got, first, err
}

// judge compares the results with the expectation, which it returns, or writes a new one.
func (l *lab) judge(m machine, got []result, broken error) (map[string]string, error) {
	file := filepath.Join(l.expect, m.name+".json")
	said := make(map[string]string)
	var errs []error
	for _, r := range got {
		if _, ok := said[r.Check]; ok {
			errs = append(errs, fmt.Errorf("%s: said twice", r.Check))
		}
		said[r.Check] = r.Got
		if strings.HasPrefix(r.Got, "failed: ") {
			errs = append(errs, fmt.Errorf("%s: %s %s", r.Check, r.Got, r.Note))
		}
	}
	if l.accept {
		if len(errs) > 0 || broken != nil || l.only != "" {
			return nil, errors.Join(append(errs, errors.New("not accepted"))...)
		}
		b, err := json.MarshalIndent(said, "", "  ")
		return said, errors.Join(err, os.MkdirAll(l.expect, 0o755), os.WriteFile(file, append(b, '\n'), 0o644))
	}
	b, err := os.ReadFile(file)
	want := make(map[string]string)
	if err == nil {
		err = json.Unmarshal(b, &want)
	}
	if err != nil {
		return nil, errors.Join(append(errs, err)...)
	}
	for _, r := range got {
		if w, ok := want[r.Check]; strings.HasPrefix(r.Check, "battery/") {
			continue // it fails by itself; what proves nothing on a kernel is told
		} else if !ok {
			errs = append(errs, fmt.Errorf("%s: %s; nothing is expected of it", r.Check, r.Got))
		} else if w != r.Got && !strings.HasPrefix(r.Got, "failed: ") {
			errs = append(errs, fmt.Errorf("%s: %s; expected %s %s", r.Check, r.Got, w, r.Note))
		}
	}
	for _, c := range sorted(want) {
		part, _, _ := strings.Cut(c, "/")
		if _, ok := said[c]; !ok && (l.only == "" || slices.Contains(strings.Split(l.only, ","), part)) {
			errs = append(errs, fmt.Errorf("%s: said nothing; expected %s", c, want[c]))
		}
	}
	return want, errors.Join(errs...)
}

func sorted(m map[string]string) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
