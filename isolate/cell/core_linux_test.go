package cell_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/tier"
)

const corePattern = "/proc/sys/kernel/core_pattern"

// TestCrashStartsNothing: a crashing program starts the host's core handler, as the host's
// root, unless its limit of a core file is 1. The program tries at its start, after setting the
// limit to 0, and in a shell started after that. Meanwhile the test owns core_pattern.
func TestCrashStartsNothing(t *testing.T) {
	before, err := os.ReadFile(corePattern)
	if err == nil {
		err = os.WriteFile(corePattern, before, 0)
	}
	if err != nil {
		t.Skip("needs root of the host, who says what handles cores:", err)
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_CORE, &limit); err != nil || limit.Max == 0 {
		t.Skip("needs root that may have cores:", err)
	}
	// No other test ends by this signal, on purpose or not.
	const crash = `/bin/sh -c 'kill -XFSZ $$'; `
	dir := t.TempDir()
	started, handler := filepath.Join(dir, "started"), filepath.Join(dir, "handler")
	if err := os.WriteFile(handler, fmt.Appendf(nil, "#!/bin/sh\nid -u | sed \"s/^/$1 $2 by /\" >> %s\n", started), 0o755); err != nil {
		t.Fatal(err)
	}
	set := func(pattern string) {
		if err := os.WriteFile(corePattern, []byte(pattern), 0); err != nil {
			t.Error(err)
		}
	}
	outside := func(script string) {
		cmd := exec.Command("/bin/sh", "-c", script)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("outside: %v\n%s", err, out)
		}
	}
	// The test holds the FIFO open for writing too, so it doesn't end.
	if err := syscall.Mkfifo(started, 0o600); err != nil {
		t.Fatal(err)
	}
	lines, err := os.OpenFile(started, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lines.Close()
	r := bufio.NewReader(lines)
	// seen waits for the handler of the last control, and returns the crashed programs.
	seen := func(controls int) (all []string) {
		if err := lines.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		for controls > 0 {
			line, err := r.ReadString('\n')
			if err != nil {
				t.Errorf("outside the handler was not started, %d times: %v; it proves nothing", controls, err)
				break
			}
			if strings.HasPrefix(line, "25 ") {
				all = append(all, line)
			}
			if line == "25 0 by 0\n" {
				controls--
			}
		}
		return all
	}
	clients := map[tier.Tier]*cell.Client{tier.B: start(t, tier.B), tier.C: start(t, tier.C)}
	specAt := func(tr tier.Tier) *isolate.Spec {
		s := benchSpec("/usr/bin/dash", isolate.NetworkFresh)
		s.Tier = tr
		if tr == tier.B {
			s.Network, s.Cwd = "", "/"
		}
		return s
	}
	inside := func(tr tier.Tier, script string) string {
		_, out := shell(t, clients[tr], specAt(tr), script)
		return out
	}
	defer set(string(before))
	set("|" + handler + " %s %u")
	outside(crash + "true")
	for tr := range clients {
		inside(tr, crash+"ulimit -c 0 || echo no; "+crash+" echo end")
	}
	outside("ulimit -c 0; " + crash + "true")
	all := seen(2)
	set(string(before))
	if len(all) != 2 {
		t.Errorf("cells started the host's handler: %q", all)
	}

	set("core")
	outside("ulimit -c unlimited; " + crash + "true")
	files := make(map[tier.Tier]string)
	for tr := range clients {
		files[tr] = inside(tr, crash+"ls -A")
	}
	set(string(before))
	if cores, _ := filepath.Glob(filepath.Join(dir, "core*")); len(cores) != 1 {
		t.Errorf("outside a crash left %q, want one core", cores)
	}
	for tr, out := range files {
		if strings.Contains(out, "core\n") || strings.Contains(out, "core.") {
			t.Errorf("tier %s: a crash left a core: %q", tr, out)
		}
	}

	// palyra-cell reads the pattern for each call.
	degraded := func(tr tier.Tier) string {
		ev, _ := shell(t, clients[tr], specAt(tr), "true")
		return strings.Join(ev.Degraded, "\n")
	}
	const sent = "core: a crash is sent to the host's handler"
	for tr := range clients {
		if d := degraded(tr); strings.Contains(d, sent) {
			t.Errorf("tier %s: %q", tr, d)
		}
	}
	set("@/run/palyra-none")
	for tr := range clients {
		if d := degraded(tr); !strings.Contains(d, sent) {
			t.Errorf("tier %s: evidence doesn't say that the host's handler gets cores: %q", tr, d)
		}
	}
}
