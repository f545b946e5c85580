package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

const programs = "/usr/lib/palyra"

type user struct {
	name string
	uid  int
}

// users play each check: root, and one without privileges.
var users = []user{{"root", 0}, {"user", 1000}}

// cells plays the parts of a machine without a service manager.
func cells(names []string) {
	if err := os.WriteFile(cgroups+"/cgroup.subtree_control", []byte("+cpu +memory +pids"), 0); err != nil {
		say("boot", verdict(err), "")
		return
	}
	parts := map[string]func(){"facts": facts, "contract": contract, "rooted": rooted, "warm": warm, "cgroup": cgroup, "pool": pool, "vsock": vsock,
		"nouserns": noUserns, "battery": battery}
	for _, n := range names {
		if f := parts[n]; f != nil {
			f()
		} else if n != "" {
			say(n, "failed: no such part", "")
		}
	}
}

// told runs a check and says how long it took, too, and what follows the first
// line of what it got.
func told(check string, f func() (string, error)) {
	start := time.Now()
	got, err := f()
	if err != nil {
		got = verdict(err)
	}
	got, more, _ := strings.Cut(got, "\n")
	if more != "" {
		more = "; " + more
	}
	say(check, got, fmt.Sprintf("%.1f s%s", time.Since(start).Seconds(), more))
}

// place is a cgroup and how it is handed to a user.
type place struct {
	inner     string // group below the delegated one to start in
	crowded   bool   // a stranger is in it
	delegated bool   // it is the user's, as with systemd's Delegate= (cgroups(7), "delegation")
}

// run starts a program in a group of its own and returns what it wrote. No group
// may be left but those that were made for it.
func (p place) run(uid int, limit time.Duration, env []string, argv ...string) (string, error) {
	group, tmp := filepath.Join(cgroups, "lab.scope"), "/tmp/lab"
	start := filepath.Join(group, p.inner)
	if err := errors.Join(os.RemoveAll(tmp), os.MkdirAll(start, 0o755), os.Mkdir(tmp, 0o755), os.Chown(tmp, uid, uid)); err != nil {
		return "", err
	}
	for _, dir := range []string{group, start} {
		for _, f := range []string{"", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"} {
			if p.delegated {
				if err := os.Chown(filepath.Join(dir, f), uid, uid); err != nil {
					return "", err
				}
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if p.crowded {
		stranger := exec.Command("/usr/bin/sleep", "1000")
		if err := startIn(start, uid, stranger); err != nil {
			return "", err
		}
		defer stranger.Wait()
		defer stranger.Process.Kill()
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = tmp, &out, &out
	cmd.Env = append([]string{"PATH=/usr/bin", "HOME=" + tmp, "TMPDIR=" + tmp, "PALYRA_TEST_CELL=" + programs + "/palyra-cell"}, env...)
	var then string
	cmd.Cancel = func() error {
		then = stuck()
		// Say it now: the lab waits for a process that can't be killed.
		fmt.Println("not done after", limit, "and killed:", then)
		return cmd.Process.Kill()
	}
	cmd.WaitDelay = 5 * time.Second // another process may hold its output
	err := startIn(start, uid, cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("not done after %v: %s; after it was killed: %s", limit, then, stuck())
	}
	if err == nil {
		err = filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && path != group && path != start && !(p.delegated && filepath.Base(path) == "palyra-main") {
				err = fmt.Errorf("group %s is left", path)
			}
			return err
		})
	}
	return out.String(), errors.Join(err, clear(group))
}

// stuck lists where each thread of each of our processes waits in the kernel.
func stuck() string {
	var out []string
	tasks, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*")
	for _, t := range tasks {
		read := func(name string) string {
			b, _ := os.ReadFile(t + "/" + name)
			return strings.Join(strings.Fields(string(b)), " ")
		}
		comm := read("comm")
		if !strings.HasPrefix(comm, "palyra") && !strings.HasSuffix(comm, ".test") {
			continue
		}
		_, state, _ := strings.Cut(read("stat"), ") ")
		out = append(out, fmt.Sprintf("%s %s %s in %s [%s]", strings.TrimPrefix(t, "/proc/"), comm, state[:min(1, len(state))], read("syscall"), read("stack")))
	}
	return strings.Join(out, "; ")
}

// clear kills what is in a group and removes it. A palyra that ended leaves its
// own group behind, as beneath a service manager, which removes it.
func clear(group string) error {
	_ = os.WriteFile(group+"/cgroup.kill", []byte("1"), 0) // Linux 5.14
	var dirs []string
	err := filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	for _, d := range slices.Backward(dirs) {
		err2 := errors.New("")
		for deadline := time.Now().Add(10 * time.Second); err2 != nil && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			err2 = syscall.Rmdir(d)
		}
		err = errors.Join(err, err2)
	}
	return err
}

func startIn(group string, uid int, cmd *exec.Cmd) error {
	dir, err := os.Open(group)
	if err != nil {
		return err
	}
	defer dir.Close()
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd()),
		Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	return cmd.Start()
}

var (
	skipped = regexp.MustCompile(`(?m)^ *--- SKIP: (\S+)`)
	because = regexp.MustCompile(`(?m)^=== \w+ +(\S+)\n +\S+\.go:\d+: (.*)$`)
	broken  = regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)`)
	words   = regexp.MustCompile(`(?m)^ +(\S+\.go:\d+: .{1,300})`)
	passes  = regexp.MustCompile(`(?m)^--- PASS: (\S+)`)
)

// tests runs tests of a built test program. Its words stay the same while tests come and
// go, except for skipped ones.
func (p place) tests(uid int, env []string, program, pattern string, args ...string) (string, error) {
	out, err := p.run(uid, 540*time.Second, env, append([]string{programs + "/" + program, "-test.v", "-test.timeout", "530s", "-test.run", pattern}, args...)...)
	for _, m := range broken.FindAllStringSubmatch(out, -1) {
		err = errors.Join(err, errors.New(m[1]))
	}
	if err != nil {
		for i, m := range words.FindAllStringSubmatch(out, -1) {
			if i < 8 {
				err = errors.Join(err, errors.New(m[1]))
			}
		}
	}
	if err == nil && !passes.MatchString(out) && !skipped.MatchString(out) {
		err = errors.New("no test ran")
	}
	if err != nil {
		fmt.Println(out[max(0, len(out)-8000):])
		return "", err
	}
	said := make(map[string]string) // the last words of a test
	for _, m := range because.FindAllStringSubmatch(out, -1) {
		said[m[1]] = strings.TrimSpace(m[2])
	}
	got := "ok"
	var why []string
	for _, m := range skipped.FindAllStringSubmatch(out, -1) {
		got += ", skipped " + m[1]
		if w := said[m[1]]; w != "" {
			why = append(why, w)
		}
	}
	if len(why) > 0 {
		got += "\n" + strings.Join(why, "; ")
	}
	return got, nil
}

// control is a part of what palyra sandbox probe prints.
type control struct{ Name, Answer, Detail string }

// probe lists the controls that the host can't enforce.
func probe(p place, uid int) (string, error) {
	out, err := p.run(uid, 60*time.Second, nil, programs+"/palyra", "sandbox", "probe", "--json")
	var doc struct {
		Host struct{ Findings []control }
	}
	var end *exec.ExitError
	if err != nil && !errors.As(err, &end) {
		return "", err
	}
	if err := json.Unmarshal([]byte(out[strings.Index(out, "{"):]), &doc); err != nil || len(doc.Host.Findings) == 0 {
		return "", fmt.Errorf("%v: %s", err, out)
	}
	missing := fmt.Sprintf("exit %d; missing:", exitOf(end))
	for _, c := range doc.Host.Findings {
		if c.Answer != "yes" {
			missing += fmt.Sprintf(" %s (%s)", c.Name, c.Detail)
		}
		if c.Name == "landlock" {
			missing = c.Detail + ", " + missing
		}
	}
	return missing, nil
}

func exitOf(end *exec.ExitError) int {
	if end == nil {
		return 0
	}
	return end.ExitCode()
}

// call is one command line from its seal to its receipt. It says tier, cgroup
// and what is degraded, or why it was refused.
func call(p place, uid int, args ...string) (string, error) {
	argv := append([]string{programs + "/palyra", "exec", "--json", "--state", "/tmp/lab/state", "--receipt", "/tmp/lab/receipt"}, args...)
	out, err := p.run(uid, 60*time.Second, nil, append(argv, "--", "/usr/bin/id", "-u")...)
	var end *exec.ExitError
	if err != nil && !errors.As(err, &end) {
		return "", err
	}
	var doc struct {
		Error struct{ Reason, Message string }
	}
	_ = json.Unmarshal([]byte(out[max(0, strings.Index(out, "{")):]), &doc) // judged below
	e, err := receiptOf("/tmp/lab/receipt")
	switch {
	case doc.Error.Reason != "":
		return fmt.Sprintf("exit %d, %s: %s", exitOf(end), doc.Error.Reason, doc.Error.Message), nil
	case err != nil:
		return "", fmt.Errorf("exit %d, %w: %s", exitOf(end), err, out)
	}
	if e.Cgroup.State == "enforced" && e.Usage.Peak <= 0 {
		return "", errors.New("memory.peak is not in the evidence")
	}
	return fmt.Sprintf("exit %d, %s, landlock %d, cgroup %s %v; %s", exitOf(end), e.Executor, e.Landlock.ABI, e.Cgroup.State, e.Cgroup.Values,
		strings.Join(e.Degradations, "; ")), nil
}

// seen is a receipt's account of the confinement.
type seen struct {
	Executor string
	Landlock struct{ ABI int }
	Cgroup   struct {
		State  string
		Values map[string]string
	}
	Usage struct {
		Peak int64 `json:"peak_memory_bytes"`
	}
	Exit struct {
		LimitHit string `json:"limit_hit"`
		TreeDead bool   `json:"tree_dead"`
	}
	Degradations []string
	Executable   struct {
		Basis string `json:"digest_basis"`
	}
}

// receiptOf reads a receipt's evidence; whether it is signed is for palyra
// attest verify.
func receiptOf(file string) (e seen, err error) {
	var bundle struct{ DsseEnvelope struct{ Payload string } }
	var statement struct {
		Predicate struct{ Evidence json.RawMessage }
	}
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, &bundle)
	}
	if err == nil {
		b, err = base64.StdEncoding.DecodeString(bundle.DsseEnvelope.Payload)
	}
	if err == nil {
		err = json.Unmarshal(b, &statement)
	}
	if err == nil {
		err = json.Unmarshal(statement.Predicate.Evidence, &e)
	}
	return e, err
}
