package backend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"palyra/crypt/keyring/backend/record"
	"palyra/crypt/seal"
	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/internal/sample"
)

// TestMain runs the process that is to be killed when the environment asks.
func TestMain(m *testing.M) {
	if dir := os.Getenv("PALYRA_TEST_CRASH"); dir != "" {
		if err := victim(dir); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// places are those of the crash tests, by their names.
func places(home string) map[string]record.Place {
	return map[string]record.Place{
		"a":       {Backend: record.File, Name: filepath.Join(home, "a", "key")},
		"b":       {Backend: record.File, Name: filepath.Join(home, "b", "key")},
		"keyring": {Backend: record.SecretService, Name: "moved"},
	}
}

// victim makes or moves an identity and dies at its n-th step; with 0 it lives and prints them.
func victim(home string) error {
	n, err := strconv.Atoi(os.Getenv("PALYRA_TEST_STEP"))
	if err != nil {
		return err
	}
	count := 0
	k, err := take(filepath.Join(home, "state", "vault"), func(name string) {
		if n == 0 {
			fmt.Println("step", name)
		}
		if count++; count == n {
			fmt.Println("dies at", name)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	})
	if err != nil {
		return err
	}
	defer k.Close()
	return change(context.Background(), k, home, os.Getenv("PALYRA_TEST_TO"))
}

func change(ctx context.Context, k *Keeper, home, to string) error {
	if k.rec == nil || k.rec.At == nil {
		id, err := k.Init(ctx, places(home)[to], false)
		if err == nil {
			id.Wipe()
		}
		return err
	}
	return k.Migrate(ctx, nil, places(home)[to], false)
}

// holds reports whether there is anything at a place.
func holds(t *testing.T, p record.Place) bool {
	t.Helper()
	s, err := open(p.Backend, asking)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = s.read(t.Context(), p.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// TestCrash kills a process at every step of making an identity and of moving it, from each backend
// to each. What is recorded then is where the identity is, and the same command again ends with one
// copy, in its place, and no other file.
func TestCrash(t *testing.T) {
	bus(t)
	moves := [][2]string{{"", "a"}, {"a", "b"}}
	if _, err := exec.LookPath("gnome-keyring-daemon"); err == nil {
		keyring(t)
		moves = append(moves, [2]string{"", "keyring"}, [2]string{"a", "keyring"}, [2]string{"keyring", "b"})
	} // TestKeyring says what is missing
	for _, m := range moves {
		t.Run(m[0]+"-"+m[1], func(t *testing.T) {
			all, _ := crash(t, 0, m[0], m[1])
			some := sample.Steps(all)
			for _, i := range some {
				if _, died := crash(t, i+1, m[0], m[1]); !died {
					t.Errorf("there was no step %d", i+1)
				}
			}
			t.Logf("killed at %d steps of %d", len(some), len(all))
		})
	}
}

// crash kills a process at the n-th step of a move. It returns the steps that the process printed.
func crash(t *testing.T, n int, from, to string) (all []string, died bool) {
	t.Helper()
	ctx := t.Context()
	home := t.TempDir()
	dir := filepath.Join(home, "state", "vault")
	var id *seal.IdentityKey
	if from != "" {
		k, err := Take(dir)
		if err != nil {
			t.Fatal(err)
		}
		if id, err = k.Init(ctx, places(home)[from], false); err != nil {
			t.Fatal(err)
		}
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PALYRA_TEST_CRASH="+home, "PALYRA_TEST_STEP="+strconv.Itoa(n), "PALYRA_TEST_TO="+to)
	out, err := cmd.CombinedOutput()
	at := strings.TrimSpace(string(out))
	died = err != nil && strings.HasPrefix(at, "dies at")
	if err != nil && !died {
		t.Fatalf("step %d: %v: %s", n, err, out)
	}
	for line := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(line, "step "); ok {
			all = append(all, name)
		}
	}
	// The identity that there was opens the vault, whatever happened.
	if from != "" {
		got, err := LoadRecorded(ctx, dir)
		if err != nil {
			t.Fatalf("step %d, %s: %v", n, at, err)
		}
		same(t, got, id)
	}
	k, err := Take(dir)
	if err != nil {
		t.Fatal(err)
	}
	// An Init that had recorded its place is taken up, and is no move.
	err = change(ctx, k, home, to)
	if err = errors.Join(err, k.Close()); err != nil {
		t.Fatalf("step %d, %s: the same again: %v", n, at, err)
	}
	got, err := LoadRecorded(ctx, dir)
	if err != nil {
		t.Fatalf("step %d, %s: %v", n, at, err)
	}
	if id != nil {
		same(t, got, id)
	}
	r, err := record.Read(dir)
	if err != nil || r.At.Backend != places(home)[to].Backend || r.At.Name != places(home)[to].Name || r.Also != nil {
		t.Errorf("step %d, %s: recorded %+v, %v", n, at, r, err)
	}
	for name, p := range places(home) {
		if name != "keyring" || to == "keyring" || from == "keyring" {
			if got := holds(t, p); got != (name == to) {
				t.Errorf("step %d, %s: something at %s: %v", n, at, p, got)
			}
		}
	}
	err = filepath.WalkDir(home, func(path string, e fs.DirEntry, err error) error {
		if err == nil && durable.IsTemp(e.Name()) {
			t.Errorf("step %d, %s: %s stays", n, at, path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if err := drop(ctx, *r.At, asking); err != nil {
		t.Error(err)
	}
	return all, died
}

// TestMigrate: what can't be moved stays where it is.
func TestMigrate(t *testing.T) {
	ctx := t.Context()
	home := t.TempDir()
	dir := filepath.Join(home, "state", "vault")
	at := func(name string) record.Place {
		return record.Place{Backend: record.File, Name: filepath.Join(home, name)}
	}
	k, err := Take(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Take(dir); fault.KindOf(err) != fault.Busy {
		t.Errorf("two at once: %v", err)
	}
	wantReason(t, k.Migrate(ctx, nil, at("b"), false), "state_missing")
	_, err = k.Init(ctx, at("state/key"), false)
	wantReason(t, err, "unsafe_file")
	id, err := k.Init(ctx, at("a"), false)
	if err != nil {
		t.Fatal(err)
	}
	again, err := k.Init(ctx, at("a"), false) // an interrupted vault init goes on
	if err != nil {
		t.Fatal(err)
	}
	same(t, again, id)
	_, err = k.Init(ctx, at("c"), false)
	wantReason(t, err, "exists")

	wantReason(t, k.Migrate(ctx, nil, at("state/key"), false), "unsafe_file")
	if err := os.Symlink(filepath.Join(home, "state"), filepath.Join(home, "link")); err != nil {
		t.Fatal(err)
	}
	wantReason(t, k.Migrate(ctx, nil, at("link/new/key"), false), "unsafe_file")
	if err := os.WriteFile(filepath.Join(home, "taken"), []byte("another's"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantReason(t, k.Migrate(ctx, nil, at("taken"), false), "exists")
	if b, err := os.ReadFile(filepath.Join(home, "taken")); err != nil || string(b) != "another's" {
		t.Errorf("another's file is %q, %v", b, err)
	}
	if r, err := record.Read(dir); err != nil || *r.At != placed(t, at("a"), id) || r.Also != nil {
		t.Errorf("recorded %+v, %v", r, err)
	}
	if err := k.Migrate(ctx, nil, at("state/key"), true); err != nil {
		t.Fatal(err)
	}
	r, err := record.Read(dir)
	if err != nil || !r.Beside || len(r.Warnings(dir, filepath.Dir(dir))) != 1 {
		t.Errorf("recorded %+v, %v", r, err)
	}
	if err := k.Migrate(ctx, nil, at("a"), false); err != nil {
		t.Fatal(err)
	}
	// The file was replaced by another identity: it doesn't open the vault, and isn't moved.
	if err := os.WriteFile(filepath.Join(home, "a"), newIdentity(t).Encode(), 0o600); err != nil {
		t.Fatal(err)
	}
	wantReason(t, k.Migrate(ctx, nil, at("b"), false), "key_corrupt")
	_, err = LoadRecorded(ctx, dir)
	wantReason(t, err, "key_corrupt")
	if err := os.Remove(filepath.Join(home, "a")); err != nil {
		t.Fatal(err)
	}
	_, err = LoadRecorded(ctx, dir)
	wantReason(t, err, "state_missing")
	if err := k.Forget(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := record.Read(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("forgotten, and still recorded: %v", err)
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestAdopt: the identity of a vault without a record is moved from where it's said to be, or
// recorded there.
func TestAdopt(t *testing.T) {
	ctx := t.Context()
	home := t.TempDir()
	dir := filepath.Join(home, "state", "vault")
	a, b := places(home)["a"], places(home)["b"]
	id := newIdentity(t)
	if err := keep(ctx, a, id, asking); err != nil {
		t.Fatal(err)
	}
	k, err := Take(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for _, to := range []record.Place{a, b} {
		if err := k.Migrate(ctx, &a, to, false); err != nil {
			t.Fatal(err)
		}
		if r, err := record.Read(dir); err != nil || *r.At != placed(t, to, id) || r.Also != nil {
			t.Errorf("recorded %+v, %v", r, err)
		}
		got, err := LoadRecorded(ctx, dir)
		if err != nil {
			t.Fatal(err)
		}
		same(t, got, id)
	}
	if holds(t, a) {
		t.Error("it was moved, and is still there")
	}
}
