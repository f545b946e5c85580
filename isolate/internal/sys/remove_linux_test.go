package sys

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestRemoveTreeLeavesDescriptors: however deep a program nested its folders, their removal leaves
// the process's other work the descriptors that it needs.
func TestRemoveTreeLeavesDescriptors(t *testing.T) {
	const levels = 900
	top := filepath.Join(t.TempDir(), "top")
	if err := os.Mkdir(top, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(top)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	at, err := syscall.Dup(int(dir.Fd()))
	for range levels {
		if err == nil {
			err = syscall.Mkdirat(at, "d", 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
		next := 0
		next, err = syscall.Openat(at, "d", syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
		syscall.Close(at)
		at = next
	}
	syscall.Close(at)
	// The kernel gives the lowest descriptor that is free.
	var highest, opened int
	done, began, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			fd, err := syscall.Open("/dev/null", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
			if err == nil {
				highest = max(highest, fd)
				syscall.Close(fd)
			}
			if opened++; opened == 1 {
				close(began)
			}
			select {
			case <-done:
				return
			default:
			}
		}
	}()
	<-began
	err = RemoveTree(top, dir)
	close(done)
	<-ended
	if _, serr := os.Lstat(top); err != nil || !errors.Is(serr, os.ErrNotExist) {
		t.Errorf("%v, %v", err, serr)
	}
	if highest > levels/2 {
		t.Errorf("the removal held some %d descriptors", highest)
	}
}
