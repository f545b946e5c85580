//go:build unix

package vault

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"palyra/crypt/seal"
	"palyra/internal/canon"
	"palyra/internal/sample"
)

// TestMain runs the process that is to be killed when the environment asks.
func TestMain(m *testing.M) {
	if state := os.Getenv("PALYRA_TEST_CRASH"); state != "" {
		n, err := strconv.Atoi(os.Getenv("PALYRA_TEST_STEP"))
		if err == nil {
			err = victim(state, n)
		}
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const crashKey = "vault://global/a"

// batch is how many secrets are stored all or none.
const batch = 3

// victim makes changes to the vault and dies at its n-th step; with 0 it lives and
// prints them. It prints each acknowledgement.
func victim(state string, n int) error {
	ctx := context.Background()
	var mu sync.Mutex
	count := 0
	step := func(name string) {
		mu.Lock()
		defer mu.Unlock()
		if n == 0 {
			fmt.Println("step", name)
		}
		if count++; count == n {
			fmt.Println("dies at", name)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	b, err := os.ReadFile(filepath.Join(state, "identity"))
	if err != nil {
		return err
	}
	id, err := seal.ParseIdentity(b)
	if err != nil {
		return err
	}
	pub, err := id.Recipient("owner")
	if err != nil {
		return err
	}
	l, err := openLog(state, step)
	if err != nil {
		return err
	}
	dir := filepath.Join(state, "vault")
	v, err := create(ctx, dir, l, id, []seal.Recipient{pub}, step)
	if err != nil {
		return err
	}
	fmt.Println("done", "created")
	r, _ := ParseRef(crashKey)
	for i := 1; i <= 2; i++ {
		if _, err := v.Set(ctx, r, fmt.Appendf(nil, "value %d", i), time.Time{}); err != nil {
			return err
		}
		fmt.Println("done", "set", i)
	}
	if err := v.RotateKey(ctx); err != nil {
		return err
	}
	fmt.Println("done", "rotated")
	if _, err := v.RotateValues(ctx); err != nil {
		return err
	}
	fmt.Println("done", "renewed")
	other, err := seal.NewIdentity()
	if err != nil {
		return err
	}
	safe, err := other.Recipient("safe")
	if err != nil {
		return err
	}
	if err := v.AddRecipient(ctx, safe, Recipient{"safe", seal.TypeHPKE, safe.ID()}); err != nil {
		return err
	}
	fmt.Println("done", "added")
	if err := v.Remove(ctx, r); err != nil {
		return err
	}
	fmt.Println("done", "removed")
	var values []NewValue
	var want []canon.Digest
	for i := range batch {
		r, _ := ParseRef(fmt.Sprintf("vault://global/batch%d", i))
		values = append(values, NewValue{Ref: r, Value: fmt.Appendf(nil, "value of %d", i)})
	}
	drafts, err := v.DraftAll(ctx, values)
	if err != nil {
		return err
	}
	for _, d := range drafts {
		want = append(want, d.Digest())
	}
	if err := v.StoreAll(ctx, drafts, want); err != nil {
		return err
	}
	fmt.Println("done", "all")
	return l.j.Close()
}

// TestCrash kills a process at every step of creating a vault and changing it, and opens what it
// left: all that was acknowledged is there, at most the change under way besides, and nothing else.
func TestCrash(t *testing.T) {
	var all []string
	for line := range strings.Lines(crash(t, 0)) {
		if name, ok := strings.CutPrefix(line, "step "); ok {
			all = append(all, strings.TrimSpace(name))
		}
	}
	if len(all) < 39 {
		t.Errorf("only %d steps", len(all))
	}
	some := sample.Steps(all)
	for _, i := range some {
		if said := crash(t, i+1); !strings.Contains(said, "dies at ") {
			t.Errorf("step %d, %s: it said %s", i+1, all[i], said)
		}
	}
	t.Logf("killed at %d steps of %d", len(some), len(all))
}

// crash kills a process at its n-th step, checks what it left, and returns what it said.
func crash(t *testing.T, n int) string {
	t.Helper()
	state := filepath.Join(t.TempDir(), "state")
	if l, err := openLog(state, nil); err != nil {
		t.Fatal(err)
	} else if err := l.j.Close(); err != nil {
		t.Fatal(err)
	}
	id, err := seal.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, "identity"), id.Encode(), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PALYRA_TEST_CRASH="+state, "PALYRA_TEST_STEP="+strconv.Itoa(n))
	out, err := cmd.Output()
	if bytes.Contains(out, []byte("error")) || (err != nil) != bytes.Contains(out, []byte("dies at")) {
		t.Fatalf("step %d: %v\n%s", n, err, out)
	}
	after(t, state, id, string(out))
	return string(out)
}

// after checks what a killed process left.
func after(t *testing.T, state string, id seal.Identity, said string) {
	t.Helper()
	l, err := openLog(state, nil)
	if err != nil {
		t.Fatalf("%s%v", said, err)
	}
	defer l.j.Close()
	dir := filepath.Join(state, "vault")
	r, _ := ParseRef(crashKey)
	has := func(s string) bool { return strings.Contains(said, "done "+s+"\n") }
	v, err := Open(t.Context(), dir, l, id)
	if err != nil {
		if has("created") {
			t.Fatalf("%s%v", said, err)
		}
		k := id.(*seal.IdentityKey)
		p, _ := k.Recipient("owner")
		if v, err = Create(t.Context(), dir, l, id, p); err != nil {
			t.Fatalf("%screate again: %v", said, err)
		}
	}
	defer v.Close()
	if n := len(v.Recipients()); has("added") && n != 2 || !has("rotated") && n != 1 {
		t.Errorf("%sthen: %d recipients", said, n)
	}
	if n := v.Stale(); has("renewed") && n != 0 {
		t.Errorf("%sthen: %d records wait for new keys", said, n)
	}
	got := "none"
	if s, i, err := v.Get(t.Context(), r, 0); err == nil {
		got = fmt.Sprint(i.Version, " ", string(s.Bytes()))
		s.Wipe()
	}
	may := []string{"none", "1 value 1"}
	switch {
	case has("removed"):
		may = []string{"none"}
	case has("added"):
		may = []string{"2 value 2", "none"}
	case has("set 2"), has("rotated"):
		may = []string{"2 value 2"}
	case has("set 1"):
		may = []string{"1 value 1", "2 value 2"}
	case !has("created"):
		may = []string{"none"}
	}
	if !strings.Contains(strings.Join(may, "|")+"|", got+"|") {
		t.Errorf("%sthen: %s, want one of %q", said, got, may)
	}
	list, err := v.List(t.Context())
	all := 0
	for _, i := range list {
		if i.Ref.String() != crashKey {
			all++
		}
	}
	if err != nil || all != batch && (all != 0 || has("all")) || all != 0 && !has("removed") {
		t.Errorf("%sthen: %d of %d, %v", said, all, batch, err)
	}
	if _, err := v.Check(t.Context()); err != nil {
		t.Errorf("%scheck: %v", said, err)
	}
	// The next change works, and leaves no file that the index doesn't name.
	if _, err := v.Set(t.Context(), r, []byte("after the crash"), time.Time{}); err != nil {
		t.Fatalf("%snext change: %v", said, err)
	}
	es, err := os.ReadDir(filepath.Join(dir, "records"))
	if err != nil || len(es) != len(v.records()) {
		t.Errorf("%s%d files of records, the index names %d: %v", said, len(es), len(v.records()), err)
	}
}
