package durable

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"palyra/internal/fault"
)

// marks is the process that marks work and is killed.
func marks(path string) {
	l, err := OpenLive(path)
	if err == nil {
		err = l.Mark("theirs")
	}
	if err == nil { // a child must not keep the mark alive
		err = exec.Command("sleep", "2").Start()
	}
	fmt.Println(err)
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the parent goes or kills us
	os.Exit(0)
}

func TestGate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *Gate {
		t.Helper()
		g, err := OpenGate(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { g.Close() })
		return g
	}
	try := func(g *Gate, h Hold, want bool) {
		t.Helper()
		if got, err := g.Try(h); got != want || err != nil {
			t.Fatalf("got %v, %v, want %v", got, err, want)
		}
	}
	a, b := open(), open()
	try(a, Shared, true)
	try(b, Shared, true)
	try(b, Exclusive, false)
	a.Release()
	try(b, Exclusive, true)
	try(a, Shared, false)
	want := fmt.Sprintf("process %d", os.Getpid())
	if got := a.Holder(); got != want {
		t.Errorf("holder %q, want %q", got, want)
	}
	err := a.Take(t.Context(), Shared, 5*time.Millisecond)
	if fault.KindOf(err) != fault.Busy || fault.ReasonOf(err) != "locked" || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if err := a.Take(ctx, Shared, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	done := make(chan error)
	go func() { done <- a.Take(context.Background(), Exclusive, time.Hour) }()
	b.Release()
	if err := <-done; err != nil {
		t.Error(err)
	}
	try(b, Shared, false)
	try(a, Shared, true) // from exclusive
	try(b, Shared, true)
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenGate(path); fault.ReasonOf(err) != "unsafe_file" {
		t.Errorf("a lock file that others can open: %v", err)
	}
}

// TestLive: a mark is seen by all, by the process that made it too, and ends with
// that process, whatever it started.
func TestLive(t *testing.T) {
	if path := os.Getenv("PALYRA_TEST_MARK"); path != "" {
		marks(path)
	}
	path := filepath.Join(t.TempDir(), "live")
	l, err := OpenLive(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestLive$")
	cmd.Env = append(os.Environ(), "PALYRA_TEST_MARK="+path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	var said string
	if _, err := fmt.Fscanln(out, &said); err != nil || said != "<nil>" {
		t.Fatal(said, err)
	}
	if err := l.Mark("ours"); err != nil {
		t.Fatal(err)
	}
	if err := l.Mark("theirs"); fault.ReasonOf(err) != "locked" {
		t.Errorf("marked twice: %v", err)
	}
	keys := []string{"ours", "theirs", "none"}
	marked := func(want string) {
		t.Helper()
		got, err := l.Marked(keys)
		if err != nil || fmt.Sprint(got) != want {
			t.Errorf("marked %v, %v, want %s", got, err, want)
		}
	}
	marked("map[ours:true theirs:true]")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	marked("map[ours:true]")
	l.Unmark("ours")
	marked("map[]")
}
