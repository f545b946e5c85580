package isolatetest

import (
	"os"
	"slices"
	"strings"
	"testing"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cache"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
)

// testTmp: calls of a session that share /tmp find there what one of them left, as files of their
// own user; a call without it, and one of another session, has another. Nothing there gives rights
// or leads out of the cell.
func testTmp(t *testing.T, h *harness) {
	dir, uid, gid := workspaceFolder(t, h)
	state := t.TempDir()
	use := func(session, script string) outcome {
		t.Helper()
		c := h.shell(t, script)
		defer c.workspace(dir, uid, gid).Close()
		if session != "" {
			c.cache(state, cache.Owner{Principal: "alice", Workspace: dir, UID: uint32(uid), GID: uint32(gid), Session: session}, isolate.CacheTmp)
		}
		return c.run()
	}
	if h.sub.Tier == tier.B {
		if o := use("one", "true"); fault.ReasonOf(o.err) != "invalid_input" || o.res != nil {
			t.Errorf("at tier b: %s, %v", o, o.err)
		}
		return
	}
	o := use("one", `cd /tmp && ls -A && stat -c %A . && echo left >f && ! mkfifo p 2>/dev/null && cp /bin/true set && ! chmod 4755 set 2>/dev/null && ln -s `+state+` state && ln -s /etc/shadow shadow && mkdir d && ! mknod dev c 1 3 2>/dev/null`)
	o.exited(t, 0)
	if o.stdout != "drwxrwxrwt\n" {
		t.Errorf("the first call saw %q", o.stdout)
	}
	if e := o.res.Evidence; e.Mounts.Tmp != evidence.TmpSession || !slices.Contains(e.Degraded, "disk: the size of caches is sampled") ||
		!slices.ContainsFunc(e.Mounts.Table, func(l string) bool { return strings.HasPrefix(l, "/tmp rw,nosuid,nodev") }) ||
		slices.ContainsFunc(e.Mounts.Table, func(l string) bool { return strings.HasPrefix(l, isolate.CacheRoot) }) {
		t.Errorf("tmp %q, degraded %q, mounts %q", e.Mounts.Tmp, e.Degraded, e.Mounts.Table)
	}
	o = use("one", `cd /tmp && test -O f && test -O d && cat f && echo more >>f && mv f d/g && cat d/g && touch d/g && chmod 600 d/g && ./set && cat state/* shadow 2>/dev/null; ls -A`)
	if o.stdout != "left\nleft\nmore\nd\nset\nshadow\nstate\n" {
		t.Errorf("the second call saw %q, %q", o.stdout, o.stderr)
	}
	for _, session := range []string{"", "two"} {
		if o = use(session, "ls -A /tmp; echo x >/tmp/own && cat /tmp/own"); o.stdout != "x\n" || (o.res.Evidence.Mounts.Tmp == "") != (session == "") {
			t.Errorf("session %q saw %q, evidence %q", session, o.stdout, o.res.Evidence.Mounts.Tmp)
		}
	}
	if err := cache.EndSession(state, "one"); err != nil {
		t.Log(err) // the calls above close theirs with the test
	}
	if left, err := os.ReadDir(state + "/" + cache.Folder); err != nil || len(left) != 2 {
		t.Errorf("%v, %v", left, err)
	}
}
